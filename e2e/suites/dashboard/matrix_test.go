//go:build linux

package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func focusGrid(t *testing.T, p *browser.Page) {
	t.Helper()
	p.AwaitTrue(t, `document.querySelectorAll('.matrix [tabindex="0"]').length === 1`)
	browser.Evaluate[bool](t, p, `(document.querySelector('.matrix [tabindex="0"]').focus(), true)`)
}

// openMatrix opens the matrix of a scenario that stands still, and focuses it.
func openMatrix(t *testing.T, scenario, path string) *browser.Page {
	t.Helper()
	opened := chromium.OpenPage(t, openStanding(t, scenario).options())
	opened.Visit(t, path)
	focusGrid(t, opened)
	return opened
}

// awaitFocus waits until a cell has the focus: its row, its column and its role.
func awaitFocus(t *testing.T, p *browser.Page, want string) {
	t.Helper()
	p.AwaitTrue(t, fmt.Sprintf(`(() => {
		const e = document.activeElement
		return [e.closest('[role=row]')?.ariaRowIndex, e.ariaColIndex, e.closest('dialog') ? 'dialog' : e.getAttribute('role')].join(' ') === %q
	})()`, want))
}

// Keys move over the cells of a fleet of which most are no elements; Enter says why, and Escape
// returns to the cell.
func TestMatrixKeys(t *testing.T) {
	testenv.RunInTurn(t, 13)
	opened := openMatrix(t, playedfleet.Large, "/?zoom=20")
	awaitFocus(t, opened, "2 2 gridcell")
	opened.Press(t, kb.ArrowDown, kb.ArrowDown, kb.ArrowRight)
	awaitFocus(t, opened, "4 3 gridcell")
	opened.Press(t, kb.End)
	awaitFocus(t, opened, "4 201 gridcell")
	opened.Press(t, kb.PageDown, kb.PageDown)
	opened.AwaitTrue(t, "Number(document.activeElement.closest('[role=row]').ariaRowIndex) > 20")
	opened.Press(t, kb.Home)
	opened.AwaitTrue(t, "document.activeElement.getAttribute('role') === 'rowheader'")
	opened.Press(t, kb.ArrowRight)
	at := browser.Evaluate[string](t, opened, "document.activeElement.closest('[role=row]').ariaRowIndex") + " 2 gridcell"
	awaitFocus(t, opened, at)

	opened.Press(t, kb.Enter)
	opened.AwaitTrue(t, "document.activeElement.closest('dialog') !== null")
	opened.AwaitText(t, "kubectl ot why image image-000")
	assert.Contains(t, browser.Evaluate[string](t, opened, "location.search"), "why=")
	opened.Press(t, kb.Escape)
	awaitFocus(t, opened, at)
	assert.NotContains(t, browser.Evaluate[string](t, opened, "location.search"), "why=")

	opened.Press(t, "-")
	opened.AwaitTrue(t, "location.search.includes('zoom=18')")
	awaitFocus(t, opened, at)
	for _, key := range []string{"-", "+", "="} {
		assert.True(t, browser.Evaluate[bool](t, opened, fmt.Sprintf(
			"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: %q, ctrlKey: true, bubbles: true, cancelable: true }))", key)), "ctrl and %s", key)
	}
	assert.Contains(t, browser.Evaluate[string](t, opened, "location.search"), "zoom=18", "the browser enlarges the page, not the matrix its cells")
}

// The focus stays in the matrix when the row that has it is no longer shown.
func TestMatrixKeepsTheFocus(t *testing.T) {
	testenv.RunInTurn(t, 4)
	opened := openMatrix(t, playedfleet.Burning, "/")
	for range 10 {
		opened.Press(t, kb.PageDown)
	}
	opened.AwaitTrue(t, "Number(document.activeElement.closest('[role=row]')?.ariaRowIndex) > 20")
	browser.Evaluate[bool](t, opened, "(history.pushState(null, '', '/?show=failing'), dispatchEvent(new PopStateEvent('popstate')))")
	awaitFocus(t, opened, "5 2 gridcell")
	opened.Press(t, kb.ArrowUp)
	awaitFocus(t, opened, "4 2 gridcell")
}

// What is not known of a cluster is hatched, and never looks like nothing, or like all is well.
func TestUnknownCellsAreSeen(t *testing.T) {
	testenv.RunInTurn(t, 5)
	p := openStanding(t, playedfleet.Burning)
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/?cluster=new-1")
	opened.AwaitTrue(t, "document.querySelectorAll('.matrix-cell').length > 10")
	assert.Equal(t, browser.Evaluate[int](t, opened, "document.querySelectorAll('.matrix-cell').length"), browser.Evaluate[int](t, opened, "document.querySelectorAll('.matrix-cell.look-unknown').length"))
	assert.Equal(t, "?", browser.Evaluate[string](t, opened, `getComputedStyle(document.querySelector('.matrix-cell'), '::before').content.replaceAll('"', '')`))
}

// The address has what is shown: choices are in it, and it alone brings them back.
func TestMatrixChoices(t *testing.T) {
	testenv.RunInTurn(t, 6)
	p := openStanding(t, playedfleet.Burning)
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/")
	opened.Click(t, "link", "Failing")
	opened.AwaitTrue(t, "location.search === '?show=failing'")
	names := `[...document.querySelectorAll('.matrix-name a')].map((a) => a.textContent).sort().join()`
	opened.AwaitTrue(t, names+" === 'bergen,lab,lyon,paris'")
	opened.Visit(t, "/?group=region&closed=edge")
	opened.AwaitTrue(t, `document.querySelector('.matrix [aria-expanded=false]').textContent.includes('edge')`)
	assert.NotContains(t, browser.Evaluate[string](t, opened, names), "edge-1,")
	focusGrid(t, opened)
	opened.Press(t, kb.Home, kb.Enter)
	opened.AwaitTrue(t, "new URLSearchParams(location.search).get('closed') === 'edge,central'")
	// The group of the clusters without the label opens and closes as others do.
	opened.Visit(t, "/?group=wave&closed=canary")
	unlabelled := `[...document.querySelectorAll('.matrix [aria-expanded]')].find((e) => e.textContent.includes('without'))?.ariaExpanded`
	opened.AwaitTrue(t, unlabelled+" === 'true'")
	focusGrid(t, opened)
	opened.Press(t, kb.Home, kb.ArrowDown, kb.Enter)
	opened.AwaitTrue(t, unlabelled+" === 'false' && new URLSearchParams(location.search).get('closed') === 'canary,-'")
	opened.Press(t, kb.Enter)
	opened.AwaitTrue(t, unlabelled+" === 'true' && new URLSearchParams(location.search).get('closed') === 'canary'")
	opened.Visit(t, "/?view=list&cluster=lab")
	opened.AwaitElement(t, "link", "lab")
	opened.Click(t, "link", "win-server 2025.2")
	opened.AwaitTrue(t, "document.querySelector('dialog[open]') !== null")
}

// Where the clusters report too many sources for a matrix, the page offers one of a part of them.
func TestSourcesOfAPartOfTheFleet(t *testing.T) {
	testenv.RunInTurn(t, 7)
	p := openOwn(t, playedfleet.Burning, "")
	p.faults.set(func(w http.ResponseWriter, request *http.Request) bool {
		query := request.URL.Query()
		if request.URL.Path != readapi.Root+"matrix" || query.Get("rows") != readapi.RowsSources || query.Get("selector") != "" {
			return false
		}
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(readapi.ErrorAnswer{Error: readapi.ChooseClustersMessage}) // the page is gone
		return true
	})
	opened := chromium.OpenPage(t, p.options())
	opened.Announce("400 /fleet/v1/matrix")
	opened.Visit(t, "/?columns=source&image=debian")
	opened.AwaitText(t, readapi.ChooseClustersMessage)
	opened.Click(t, "link", "Show versions")
	opened.AwaitTrue(t, "location.search === '' && document.querySelectorAll('.matrix-cell').length > 10")
	opened.Visit(t, "/?columns=source")
	opened.AwaitElement(t, "link", "Show versions")
	opened.FillField(t, "searchbox", "Clusters by selector", "region=nordics")
	opened.AwaitTrue(t, "document.querySelectorAll('.matrix-cell').length > 10")
	names := browser.Evaluate[string](t, opened, "[...document.querySelectorAll('.matrix-name a')].map((a) => a.textContent).join()")
	assert.Contains(t, names, "bergen")
	assert.NotContains(t, names, "paris")
}

// A matrix of sources without a row says why: no cluster is chosen, or nothing is known of them. One
// that fails for another reason than its size offers no smaller one.
func TestSourcesOfNoCluster(t *testing.T) {
	testenv.RunInTurn(t, 9)
	p := openStanding(t, playedfleet.Burning)
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/?columns=source&selector=region%3Dnowhere")
	opened.AwaitText(t, "No cluster matches this selector.")
	opened.Visit(t, "/?columns=source&selector=region%3Dlab%2Cwave%21%3Dcanary%2Cenv%21%3Dproduction%2Cedge%21%3Dtrue")
	opened.AwaitText(t, "No source is known of these clusters.")
	opened.Announce("400 /fleet/v1/matrix")
	opened.Visit(t, "/?columns=source&selector=region+in+(")
	opened.AwaitText(t, "is no label selector")
	opened.AwaitNone(t, "link", "Show versions")
}

// After the first answer, the page asks for what changed of the matrix alone.
func TestMatrixChangesAlone(t *testing.T) {
	testenv.RunInTurn(t, 11)
	p := openOwn(t, playedfleet.Healthy, "")
	opened := chromium.OpenPage(t, browser.Options{Origin: p.origin})
	opened.Visit(t, "/")
	opened.AwaitTrue(t, "document.querySelectorAll('.matrix-cell').length > 100")
	asked := func() (whole, changes int) {
		for _, request := range opened.Requests() {
			u, err := url.Parse(request)
			require.NoError(t, err)
			switch {
			case !strings.HasSuffix(u.Path, "/fleet/v1/matrix"):
			case u.Query().Has("since"):
				changes++
			default:
				whole++
			}
		}
		return whole, changes
	}
	require.Eventually(t, func() bool {
		p.advance(time.Minute)
		_, changes := asked()
		return changes > 1
	}, testenv.Patience, 100*time.Millisecond)
	whole, _ := asked()
	assert.Equal(t, 1, whole)
}

// The search finds by a part of a name, by keys alone.
func TestSearchByKeyboard(t *testing.T) {
	testenv.RunInTurn(t, 12)
	p := openStanding(t, playedfleet.Burning)
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/transfers")
	require.NoError(t, opened.AwaitQuiet())
	opened.Press(t, "/")
	opened.AwaitTrue(t, "document.activeElement.getAttribute('role') === 'combobox'")
	opened.FillField(t, "combobox", "Search", "erge")
	opened.AwaitElement(t, "option", "bergen")
	opened.Press(t, kb.ArrowDown)
	opened.AwaitTrue(t, `document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))?.textContent.includes('bergen')`)
	opened.CheckAccessibility(t)
	opened.Press(t, kb.Enter)
	opened.AwaitTrue(t, "location.pathname === '/clusters/bergen'")
}
