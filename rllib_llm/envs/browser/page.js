// Lists the elements of a page and applies actions to them. It is injected into every
// document before its own scripts; elements.py describes what look() returns.
window.rllibPage = (() => {
  const KINDS = {A: 'link', BUTTON: 'button', TEXTAREA: 'textarea', SELECT: 'list'};
  const INPUTS = {
    checkbox: 'checkbox', radio: 'radio', range: 'slider',
    button: 'button', submit: 'button', reset: 'button', image: 'button',
  };
  const ROLES = new Set(['button', 'link', 'tab', 'menuitem', 'option', 'switch']);
  const CONTROLS = 'a, button, input, select, textarea';
  let listed = [];

  const tidy = text => (text || '').replace(/\s+/g, ' ').trim();

  function ownText(element) {
    const texts = [...element.childNodes].filter(n => n.nodeType === Node.TEXT_NODE);
    return tidy(texts.map(n => n.data).join(' '));
  }

  function isPointed(element) {
    const cursor = e => e && getComputedStyle(e).cursor === 'pointer';
    return cursor(element) && !cursor(element.parentElement);
  }

  // Kind of a control; '' for elements that only hold others, or text.
  function controlKind(element) {
    const role = element.getAttribute('role');
    if (element.tagName === 'INPUT') return INPUTS[element.type] || 'field';
    const around = element.parentElement && element.parentElement.closest('[role]');
    const outer = around ? around.getAttribute('role') : '';
    if (element.tagName === 'A' && ROLES.has(outer)) return outer;
    if (KINDS[element.tagName]) return KINDS[element.tagName];
    return ROLES.has(role) && !element.querySelector(CONTROLS) ? role : '';
  }

  function controlName(element) {
    const labels = [...(element.labels || [])].map(l => tidy(l.textContent));
    const isTyped = ['INPUT', 'TEXTAREA', 'SELECT'].includes(element.tagName);
    const shown = isTyped ? '' : tidy(element.textContent);
    const names = [
      labels.join(' '), shown, element.type === 'submit' ? element.value : '',
      element.getAttribute('aria-label'), element.getAttribute('placeholder'),
      element.title, isTyped ? element.name || element.id : '',
    ];
    return tidy(names.find(name => tidy(name)));
  }

  // Kind and name of what is no control: a text, a shape, a coloured box, an icon.
  function plainKind(element) {
    if (element.labels || element.tagName === 'OPTION') return null;
    const text = element.tagName === 'LABEL' && element.control ? '' : ownText(element);
    if (text) return [isPointed(element) ? 'link' : 'text', text];
    if (element.children.length) return null;
    if (element instanceof SVGElement)
      return [element.tagName, element.getAttribute('fill') || ''];
    if (element.tagName === 'IMG') return ['image', element.alt || element.title];
    const colour = element.style && element.style.backgroundColor;
    if (colour) return ['box', colour];
    return isPointed(element) ? ['icon', String(element.className || element.id)] : null;
  }

  function valueOf(element, kind) {
    if (kind === 'checkbox' || kind === 'radio') return element.checked ? 'on' : 'off';
    if (kind === 'list') {
      const chosen = element.options[element.selectedIndex];
      return chosen ? tidy(chosen.textContent) : '';
    }
    const selected = element.getAttribute('aria-selected') === 'true' ||
      (kind === 'tab' && element.closest('[aria-selected="true"]'));
    if (selected) return 'on';
    return 'value' in element && kind !== 'button' && kind !== 'tab' ?
      String(element.value) : '';
  }

  function describe(element, kind, name) {
    const box = element.getBoundingClientRect();
    const corners = [box.left, box.top, box.right, box.bottom].map(Math.round);
    const options = kind === 'list' ? [...element.options] : [];
    return {
      kind, name, value: valueOf(element, kind), box: corners,
      focused: document.activeElement === element,
      options: options.map(o => tidy(o.textContent)),
    };
  }

  function collect(element, omitted, into) {
    const isShown = element.checkVisibility({visibilityProperty: true});
    if (!isShown || (omitted && element.matches(omitted))) return;
    const kind = controlKind(element);
    const found = kind ? [kind, controlName(element)] : plainKind(element);
    const box = element.getBoundingClientRect();
    if (found && box.width > 0 && box.height > 0) into.push([element, ...found]);
    if (!kind) for (const child of element.children) collect(child, omitted, into);
  }

  function mouse(element, type) {
    const box = element.getBoundingClientRect();
    const Kind = type.startsWith('pointer') ? PointerEvent : MouseEvent;
    element.dispatchEvent(new Kind(type, {
      bubbles: true, cancelable: true, view: window,
      clientX: (box.left + box.right) / 2, clientY: (box.top + box.bottom) / 2,
    }));
  }

  return {
    // The visible elements from the top; omitted: a CSS selector of what to leave out.
    look(omitted) {
      const shown = [];
      collect(document.body, omitted, shown);
      listed = shown.map(([element]) => element);
      return shown.map(entry => describe(...entry));
    },
    // Clicks element number n of the last look, wherever it is and whatever covers it.
    click(n) {
      const element = listed[n - 1];
      element.scrollIntoView({block: 'nearest'});
      ['mouseover', 'mousemove', 'pointerdown', 'mousedown'].forEach(
        type => mouse(element, type));
      if (element.focus) element.focus();
      ['pointerup', 'mouseup'].forEach(type => mouse(element, type));
      if (element.click) element.click(); else mouse(element, 'click');
    },
    // Focuses an element and selects its text, so that typing replaces it.
    focus(n) {
      const element = listed[n - 1];
      element.scrollIntoView({block: 'nearest'});
      element.focus();
      if (element.select) element.select();
    },
    // Chooses the option number i, from 0, of a list.
    select(n, i) {
      const element = listed[n - 1];
      element.focus();
      element.selectedIndex = i;
      ['input', 'change'].forEach(
        type => element.dispatchEvent(new Event(type, {bubbles: true})));
    },
  };
})();
