// Keeps the page and the model for the time without a network. With one, the server has the word: a file is asked
// for again (and answered by "not modified" where nothing changed), so that a new model is never hidden by an old one.
const CACHE = "vaswani-transformer-page";
const FILES = [
  "./",
  "style.css",
  "app.js",
  "worker.js",
  "translator.js",
  "tokenizer.js",
  "vendor/ort.wasm.min.mjs",
  "vendor/ort-wasm-simd-threaded.mjs",
  "vendor/ort-wasm-simd-threaded.wasm",
  "model/config.json",
  "model/generation_config.json",
  "model/tokenizer.json",
  "model/tokenizer_config.json",
  "model/model.onnx",
];

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)));
  self.skipWaiting();
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== location.origin) return;
  event.respondWith(newest(event.request));
});

async function newest(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request, { cache: "no-cache" });
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (offline) {
    const kept = await cache.match(request, { ignoreSearch: true });
    if (kept) return kept;
    throw offline;
  }
}
