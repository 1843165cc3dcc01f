//go:build linux

package dashboard_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// storedReason is that of bergen's quarantine, as the API server has it.
func storedReason(t *testing.T, p *browser.Page) string {
	t.Helper()
	return browser.Evaluate[string](t, p, `(() => {
		const request = new XMLHttpRequest()
		request.open('GET', '/k8s/apis/pelotech.ot/v1alpha1/memberclusters/bergen', false)
		request.send()
		return JSON.parse(request.responseText).spec.quarantine?.reason ?? ''
	})()`)
}

// A quarantine is shown with what it does before it is written, and ends as it began: by clicks.
func TestQuarantine(t *testing.T) {
	p := openOwn(t, playedfleet.Healthy, "")
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/clusters/bergen")
	opened.Click(t, "button", "Quarantine…")
	opened.AwaitText(t, "nothing is synced, in either direction")
	opened.AwaitText(t, "kubectl --context bergen -n ot-agent delete secret ot-hub-access")
	opened.Click(t, "button", "Quarantine")
	opened.AwaitText(t, "Say why, for whoever finds the cluster cut off.")
	assert.Empty(t, storedReason(t, opened), "nothing is written without a reason")

	opened.FillField(t, "textbox", "Why, for whoever finds it cut off", "reports 256 imports")
	opened.AwaitText(t, "kubectl ot quarantine bergen --reason 'reports 256 imports'")
	opened.Click(t, "button", "Quarantine")
	opened.AwaitText(t, "bergen is in quarantine.")
	assert.Equal(t, "reports 256 imports", storedReason(t, opened))
	opened.Click(t, "button", "Close")

	opened.Click(t, "button", "End the quarantine…")
	opened.AwaitText(t, "the hub connects again")
	opened.Click(t, "button", "End the quarantine")
	opened.AwaitText(t, "The quarantine of bergen has ended.")
	assert.Empty(t, storedReason(t, opened))
}

// drawnPixels counts the pixels of the charts that are not empty.
const drawnPixels = `[...document.querySelectorAll('.chart canvas')].map((c) => {
	const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data
	let drawn = 0
	for (let i = 3; i < data.length; i += 4) if (data[i] > 0) drawn++
	return drawn
})`

// Charts are drawn in both themes and follow the width of the window; their values are a table,
// too, and the address holds the span that is shown.
func TestCharts(t *testing.T) {
	p := openStanding(t, playedfleet.Burning)
	for _, dark := range []bool{false, true} {
		o := p.options()
		o.Dark = dark
		opened := chromium.OpenPage(t, o)
		opened.Visit(t, "/transfers")
		opened.AwaitTrue(t, "document.querySelectorAll('.chart canvas').length > 3")
		require.NoError(t, opened.AwaitQuiet())
		for _, drawn := range browser.Evaluate[[]int](t, opened, drawnPixels) {
			assert.Positive(t, drawn, "an empty chart")
		}
		opened.AwaitText(t, "when this replica was elected")
		const tooWide = `[...document.querySelectorAll('.chart')].filter((c) => c.querySelector('canvas').getBoundingClientRect().width > c.getBoundingClientRect().width + 1).length`
		opened.Resize(t, 390, 844)
		opened.AwaitTrue(t, tooWide+" === 0")
		opened.Resize(t, 1280, 900)
		opened.AwaitTrue(t, "document.querySelector('.chart canvas').getBoundingClientRect().width > 300")

		before := browser.Evaluate[int](t, opened, "document.querySelectorAll('.chart-table table').length")
		assert.Zero(t, before, "a table that nobody opened costs nothing")
		browser.Evaluate[bool](t, opened, "document.querySelector('.chart-table summary').click() === undefined")
		opened.AwaitTrue(t, "document.querySelectorAll('.chart-table tbody tr').length > 10")
		assert.Contains(t, browser.Evaluate[string](t, opened, "document.querySelector('.chart-table').innerText"), "unknown", "what is not known is said to be")
	}
}

// The list is searched, filtered and sorted by the hub, and its state is in the address.
func TestClustersOfALargeFleet(t *testing.T) {
	testenv.RunInTurn(t, 23)
	p := openStanding(t, playedfleet.Large)
	opened := chromium.OpenPage(t, p.options())
	opened.Visit(t, "/clusters?sort=name&order=desc")
	opened.AwaitText(t, "1–50 of 1,000 clusters")
	first := "document.querySelector('tbody tr a').innerText"
	last := browser.Evaluate[string](t, opened, first)
	opened.Click(t, "link", "After →")
	opened.AwaitText(t, "51–100 of 1,000 clusters")
	opened.Visit(t, "/clusters")
	opened.FillField(t, "searchbox", "Name or label", last)
	opened.AwaitTrue(t, "document.querySelectorAll('tbody tr').length === 1")
	assert.Equal(t, last, browser.Evaluate[string](t, opened, first))
	assert.Contains(t, browser.Evaluate[string](t, opened, "location.search"), "q="+last)
	opened.Visit(t, "/clusters?state=Silent")
	opened.AwaitTrue(t, "document.querySelectorAll('tbody tr').length > 0")
	assert.Zero(t, browser.Evaluate[int](t, opened, "[...document.querySelectorAll('tbody tr')].filter((r) => !r.innerText.includes('Silent')).length"))
}

// A letter that is typed while the page takes what was typed before it into the address is kept.
func TestTypedLettersAreKept(t *testing.T) {
	p := openStanding(t, playedfleet.Healthy)
	for path, label := range map[string]string{"/clusters": "Name or label", "/transfers": "Cluster or image"} {
		t.Run(strings.TrimPrefix(path, "/"), func(t *testing.T) {
			opened := chromium.OpenPage(t, p.options())
			opened.Visit(t, path)
			opened.AwaitElement(t, "searchbox", label)
			browser.Evaluate[bool](t, opened, `(() => {
				const replace = history.replaceState
				history.replaceState = function (...of) {
					replace.apply(this, of)
					history.replaceState = replace
					const field = document.activeElement
					field.value += 'gen'
					field.dispatchEvent(new InputEvent('input', { bubbles: true }))
				}
				return true
			})()`)
			opened.FillField(t, "searchbox", label, "ber")
			opened.AwaitTrue(t, "new URLSearchParams(location.search).get('q') === 'bergen'")
			assert.Equal(t, "bergen", browser.Evaluate[string](t, opened, "document.activeElement.value"))

			// What a link says is taken over.
			browser.Evaluate[bool](t, opened, "(history.pushState(null, '', '"+path+"?q=oslo'), dispatchEvent(new PopStateEvent('popstate')))")
			opened.AwaitTrue(t, "document.activeElement.value === 'oslo'")
		})
	}
}
