// The model runs here, so that the page goes on answering while it does.
import { Translator } from "./translator.js";

const modelFolder = new URL("model/", import.meta.url);
let translator;

// One message after the other: ONNX Runtime's WebAssembly runs one call at a time.
let queue = Promise.resolve();
onmessage = ({ data }) => {
  queue = queue.then(() => answer(data));
};

async function answer({ id, ask, sentence, beams }) {
  try {
    if (ask === "load") {
      translator = await Translator.load(modelFolder, (part) => postMessage({ id, part }));
      await translator.translate("a"); // the first call allocates memory
      const { hasSettings, beams: own, limit } = translator;
      postMessage({ id, result: { hasSettings, beams: own, limit } });
    } else {
      postMessage({ id, result: await translator.translate(sentence, beams) });
    }
  } catch (error) {
    postMessage({ id, error: String(error?.message ?? error) });
  }
}
