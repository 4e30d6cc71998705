// Gradio puts each radio button in a group of its own, so that arrow keys do not move between them, and gives the group no
// accessible name. This function, which Gradio runs once, fixes both, also for buttons that are added later.
() => {
  const fix = () => {
    for (const group of document.querySelectorAll("fieldset:has(input[type=radio])")) {
      group.ariaLabel = group.querySelector("[data-testid=block-info]").firstChild.textContent;
      for (const button of group.querySelectorAll("input")) button.name = group.id;
    }
  };
  new MutationObserver(fix).observe(document.body, { childList: true, subtree: true });
  fix();
};
