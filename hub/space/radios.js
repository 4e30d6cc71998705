// Gradio gives each radio button a group of its own, so that arrow keys do not move between them, and the group no name
// that a screen reader could say. Gradio runs this function once; buttons that come later are seen to as they come.
() => {
  const mend = () => {
    for (const group of document.querySelectorAll("fieldset:has(input[type=radio])")) {
      group.ariaLabel = group.querySelector("[data-testid=block-info]").firstChild.textContent;
      for (const button of group.querySelectorAll("input")) button.name = group.id;
    }
  };
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
  mend();
};
