// Runs the model, so that the page stays responsive.
import { containedWorker } from "./contained-worker.js";
import { Translator } from "./translator.js";

// ONNX Runtime starts its threads with `new Worker`; they are contained as well.
globalThis.Worker = function (url, options) {
  return containedWorker(url, options);
};

const modelFolder = new URL("model/", import.meta.url);
let translator;

// One message at a time: ONNX Runtime's WebAssembly runs one call at a time.
let queue = Promise.resolve();
onmessage = ({ data }) => {
  queue = queue.then(() => answer(data));
};

async function answer({ id, request, text, beams, language }) {
  try {
    if (request === "load") {
      translator = await Translator.load(modelFolder, (progress) => postMessage({ id, progress }));
      await translator.translate("a", 1); // the first call allocates memory
      const { hasSettings, beams, about, languages } = translator;
      postMessage({ id, result: { hasSettings, beams, about, languages } });
    } else if (request === "split") {
      postMessage({ id, result: translator.split(text, language) });
    } else {
      postMessage({ id, result: await translator.translate(text, beams) });
    }
  } catch (error) {
    postMessage({ id, error: String(error?.message ?? error) });
  }
}
