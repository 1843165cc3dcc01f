//go:build linux

package dashboard_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// focused describes the element that has the focus.
const focused = `(() => { const e = document.activeElement; return (e.getAttribute('role') ?? e.tagName.toLowerCase()) + ' ' + (e.getAttribute('aria-label') ?? e.innerText ?? '').trim() + ' of row ' + e.closest('[role=row]')?.getAttribute('aria-rowindex') })()`

// A person without a pointer gets from the top of the page into the matrix, along its rows and
// columns, far beyond what is drawn, opens a cell, closes it, and is where they were.
func TestMatrixByKeyboard(t *testing.T) {
	testenv.RunInTurn(t, 18)
	p := openStanding(t, playedfleet.Large)
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/")
	opened.AwaitTrue(t, "document.querySelector('[role=grid] [role=gridcell]') !== null")
	require.NoError(t, opened.AwaitQuiet())

	opened.Press(t, kb.Tab)
	assert.Equal(t, "a Skip to the page of row undefined", browser.Evaluate[string](t, opened, focused))
	for range 200 {
		if browser.Evaluate[bool](t, opened, "document.activeElement.closest('[role=grid]') !== null") {
			break
		}
		opened.Press(t, kb.Tab)
	}
	require.True(t, browser.Evaluate[bool](t, opened, "document.activeElement.closest('[role=grid]') !== null"), "tabulating does not reach the matrix")
	first := browser.Evaluate[string](t, opened, focused)
	opened.Press(t, kb.ArrowDown, kb.ArrowRight, kb.ArrowRight)
	opened.AwaitDrawn(t)
	cell := browser.Evaluate[string](t, opened, focused)
	assert.NotEqual(t, first, cell)
	assert.True(t, browser.Evaluate[bool](t, opened, "(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0 || s.boxShadow !== 'none' })()"), "the focus cannot be seen")
	for range 30 {
		opened.Press(t, kb.PageDown)
	}
	opened.AwaitDrawn(t)
	far := browser.Evaluate[string](t, opened, focused)
	assert.Contains(t, far, "gridcell")
	assert.NotEqual(t, cell, far, "the focus does not move beyond what is drawn")
	assert.True(t, browser.Evaluate[bool](t, opened, "(() => { const r = document.activeElement.getBoundingClientRect(), g = document.activeElement.closest('[role=grid]').getBoundingClientRect(); return r.top >= g.top - 1 && r.bottom <= g.bottom + 1 })()"), "the focus is out of sight")

	opened.Press(t, kb.Enter)
	opened.AwaitTrue(t, "document.querySelector('dialog[open]') !== null")
	opened.Press(t, kb.Escape)
	awaitReturn(t, opened, far)
	opened.Press(t, kb.Enter, kb.Escape) // as fast as keys are read
	awaitReturn(t, opened, far)

	opened.Press(t, "/")
	opened.AwaitTrue(t, "document.activeElement.matches('input[type=search]')")
}

// awaitReturn waits until no dialog is open and an element, as focused describes it, has the focus.
func awaitReturn(t *testing.T, p *browser.Page, element string) {
	t.Helper()
	p.AwaitTrue(t, fmt.Sprintf("!location.search.includes('why=') && document.querySelector('dialog[open]') === null && %s === %q", focused, element))
}
