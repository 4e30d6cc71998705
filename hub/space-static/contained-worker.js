// Starts workers that inherit the page's content security policy.
//
// A worker started from a file gets the policy of that file's response, and a static server sends none. A worker started
// from a blob: URL inherits the policy of its creator, so the blob is one line that imports the file.
const UncontainedWorker = globalThis.Worker;

/** Start a module worker that can connect only where this page can. url: absolute. */
export function containedWorker(url, options) {
  const script = new Blob([`import ${JSON.stringify(String(url))};`], { type: "text/javascript" });
  return new UncontainedWorker(URL.createObjectURL(script), { ...options, type: "module" });
}
