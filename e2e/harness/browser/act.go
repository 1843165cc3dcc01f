package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// callCommand calls a command of the protocol unless one before it failed.
func callCommand[P, R any](ctx context.Context, err *error, command cdp.Command[P, R], params ...P) {
	if *err != nil {
		return
	}
	var p P
	if len(params) > 0 {
		p = params[0]
	}
	_, *err = chromedp.Call(ctx, command, p)
}

// Element is what assistive technology sees: an element by role and name.
type Element struct {
	Role, Name string
	id         cdp.BackendNodeID
}

// findElements returns the elements with a role whose names contain a text, those whose name it is
// first. "Pause…", which opens a dialog, is not found as "Pause", which is in that dialog.
func (p *Page) findElements(ctx context.Context, role, name string) ([]Element, error) {
	root, err := chromedp.Call(ctx, runtime.Evaluate, runtime.EvaluateParams{Expression: "document"})
	if err != nil {
		return nil, err
	}
	found, err := chromedp.Call(ctx, accessibility.QueryAXTree, accessibility.QueryAXTreeParams{ObjectID: root.Result.ObjectID, Role: role})
	if err != nil {
		return nil, err
	}
	var elements []Element
	for _, node := range found.Nodes {
		var has string
		if node.Name != nil {
			_ = json.Unmarshal(node.Name.Value, &has) // not a text: no name
		}
		if !node.Ignored && strings.Contains(has, name) && (name == "" || has != name+"…") {
			elements = append(elements, Element{Role: role, Name: has, id: node.BackendDOMNodeID})
		}
	}
	slices.SortStableFunc(elements, func(a, b Element) int {
		switch {
		case a.Name == name && b.Name != name:
			return -1
		case a.Name != name && b.Name == name:
			return 1
		}
		return 0
	})
	return elements, nil
}

// FindAll returns the elements with a role whose names contain a text, now.
func (p *Page) FindAll(t *testing.T, role, name string) []Element {
	t.Helper()
	elements, err := p.findElements(p.ctx, role, name)
	require.NoError(t, err)
	return elements
}

// AwaitElement waits for an element with a role whose name contains a text, and returns the
// first.
func (p *Page) AwaitElement(t *testing.T, role, name string) Element {
	t.Helper()
	var element Element
	p.retryUntil(t, fmt.Sprintf("there is no %s %q", role, name), func(ctx context.Context) bool {
		elements, err := p.findElements(ctx, role, name)
		if err != nil || len(elements) == 0 {
			return false
		}
		element = elements[0]
		return true
	})
	return element
}

// AwaitNone waits until there is no element with a role whose name contains a text.
func (p *Page) AwaitNone(t *testing.T, role, name string) {
	t.Helper()
	p.retryUntil(t, fmt.Sprintf("there still is a %s %q", role, name), func(ctx context.Context) bool {
		elements, err := p.findElements(ctx, role, name)
		return err == nil && len(elements) == 0
	})
}

func (p *Page) retryUntil(t *testing.T, failure string, try func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !try(ctx) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			require.Fail(t, failure, p.summarize())
		}
	}
}

// Click clicks on the first element with a role whose name contains a text, once it is there and
// nothing covers it.
func (p *Page) Click(t *testing.T, role, name string) {
	t.Helper()
	p.retryUntil(t, fmt.Sprintf("no %s %q can be clicked", role, name), func(ctx context.Context) bool {
		elements, err := p.findElements(ctx, role, name)
		if err != nil || len(elements) == 0 {
			return false
		}
		return p.clickElement(ctx, elements[0]) == nil
	})
}

func (p *Page) clickElement(ctx context.Context, e Element) error {
	if _, err := chromedp.Call(ctx, dom.ScrollIntoViewIfNeeded, dom.ScrollIntoViewIfNeededParams{BackendNodeID: e.id}); err != nil {
		return err
	}
	quads, err := chromedp.Call(ctx, dom.GetContentQuads, dom.GetContentQuadsParams{BackendNodeID: e.id})
	if err != nil || len(quads.Quads) == 0 {
		return fmt.Errorf("%s %q has no place on the page: %w", e.Role, e.Name, err)
	}
	q := quads.Quads[0]
	x, y := (q[0]+q[2]+q[4]+q[6])/4, (q[1]+q[3]+q[5]+q[7])/4
	resolved, err := chromedp.Call(ctx, dom.ResolveNode, dom.ResolveNodeParams{BackendNodeID: e.id})
	if err != nil {
		return err
	}
	hit, err := chromedp.Call(ctx, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
		ObjectID: resolved.Object.ObjectID, FunctionDeclaration: fmt.Sprintf(awaitClick, x, y),
	})
	if err != nil || string(hit.Result.Value) != "true" {
		return fmt.Errorf("%s %q is covered or disabled: %w", e.Role, e.Name, err)
	}
	if err := chromedp.Do(ctx, chromedp.MouseClickXY(x, y)); err != nil {
		return err
	}
	// A click that opens another page leaves no answer.
	if missed, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("globalThis.clickHit === false")); err == nil && missed {
		return fmt.Errorf("%s %q moved or was disabled before the click", e.Role, e.Name)
	}
	return nil
}

// awaitClick is a function of an element: whether it can be clicked at a point. It notes in clickHit
// whether the next click is one on it while it is enabled: the page may be drawn anew in between.
const awaitClick = `function () {
	const hit = document.elementFromPoint(%f, %f)
	const isEnabled = () => !this.disabled && this.getAttribute('aria-disabled') !== 'true'
	const isHere = (e) => this.contains(e) || [...(this.labels ?? [])].some((l) => l.contains(e))
	if (hit === null || !isEnabled() || !isHere(hit) && !hit.contains(this)) return false
	globalThis.clickAwaited?.abort()
	const awaited = globalThis.clickAwaited = new AbortController()
	globalThis.clickHit = false
	document.addEventListener('click', (event) => {
		globalThis.clickHit = isEnabled() && (isHere(event.target) || event.target === hit)
	}, { capture: true, once: true, signal: awaited.signal })
	return true
}`

// FillField types a text into the element with a role whose name contains a text, in place of what
// is there.
func (p *Page) FillField(t *testing.T, role, name, text string) {
	t.Helper()
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	// Again where the field was drawn anew, or lost the focus, in between.
	p.retryUntil(t, fmt.Sprintf("%s %q does not take %s", role, name, quoted), func(ctx context.Context) bool {
		elements, err := p.findElements(ctx, role, name)
		if err != nil || len(elements) == 0 {
			return false
		}
		callCommand(ctx, &err, dom.Focus, dom.FocusParams{BackendNodeID: elements[0].id})
		if err == nil {
			_, err = chromedp.Run(ctx, chromedp.Evaluate[bool]("(document.activeElement.select?.(), true)"))
		}
		callCommand(ctx, &err, input.InsertText, input.InsertTextParams{Text: text})
		if err != nil {
			return false
		}
		taken, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("document.activeElement.value === "+string(quoted)))
		return err == nil && taken
	})
}

// FocusElement gives the focus to the first element with a role whose name contains a text.
func (p *Page) FocusElement(t *testing.T, role, name string) {
	t.Helper()
	_, err := chromedp.Call(p.ctx, dom.Focus, dom.FocusParams{BackendNodeID: p.AwaitElement(t, role, name).id})
	require.NoError(t, err)
}

// Press presses keys, one after the other: those of package kb, or characters.
func (p *Page) Press(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		require.NoError(t, chromedp.Do(p.ctx, chromedp.KeyEvent(key)))
	}
}

// Resize changes the size of the window.
func (p *Page) Resize(t *testing.T, width, height int64) {
	t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
	require.NoError(t, err)
	p.AwaitTrue(t, fmt.Sprintf("innerWidth === %d", width))
}

// ClickIfEnabled clicks on an element unless it is gone, covered or disabled by now.
func (p *Page) ClickIfEnabled(t *testing.T, e Element) {
	t.Helper()
	if err := p.clickElement(p.ctx, e); err != nil {
		t.Log(err)
	}
}
