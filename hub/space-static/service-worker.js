// Makes the page work offline. Online, every file is revalidated with the server ("not modified" if it has not
// changed), so that the cache never hides a newer model.
const CACHE = "vaswani-transformer-page";
const FILES = [
  "./",
  "style.css",
  "app.js",
  "contained-worker.js",
  "worker.js",
  "translator.js",
  "sentences.js",
  "tokenizer.js",
  "vendor/ort.wasm.min.mjs",
  "vendor/ort-wasm-simd-threaded.mjs",
  "vendor/ort-wasm-simd-threaded.wasm",
  "model/about.json",
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
  event.respondWith(networkFirst(event.request));
});

async function networkFirst(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request, { cache: "no-cache" });
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (offline) {
    const cached = await cache.match(request, { ignoreSearch: true });
    if (cached) return cached;
    throw offline;
  }
}
