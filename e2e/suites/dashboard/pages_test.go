//go:build linux

package dashboard_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// slips are texts that a page shows where something was forgotten.
var slips = regexp.MustCompile(`\bundefined\b|\bNaN\b|\[object \w+\]|Invalid Date|\bnull\b|Infinity`)

// checkPage opens a page and checks what holds of all of them.
func checkPage(t *testing.T, p *browser.Page, of page) {
	t.Helper()
	p.Visit(t, of.path)
	require.NoError(t, p.AwaitQuiet())
	p.AwaitTrue(t, "!document.querySelector('main .skeleton')")
	text := p.Text(t)
	assert.NotRegexp(t, slips, text)
	assert.Equal(t, 1, browser.Evaluate[int](t, p, "document.querySelectorAll('h1').length"), "headings of the first level")
	assert.Contains(t, browser.Evaluate[string](t, p, "document.title"), "OT Fleet")
	assert.Equal(t, of.path, p.Path(t), "the address changed by itself")
	assert.Less(t, browser.Evaluate[int](t, p, "document.querySelectorAll('*').length"), maxNodes)
	checkWidth(t, p, "1280 px")
	if of.command {
		assert.Contains(t, text, "kubectl ot ", "no command says the same")
	}
}

// checkWidth checks that the page itself need not be scrolled sideways.
func checkWidth(t *testing.T, p *browser.Page, what string) {
	t.Helper()
	wide := browser.Evaluate[string](t, p, `(() => {
		const root = document.documentElement
		if (root.scrollWidth <= root.clientWidth) return ''
		const wide = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > root.clientWidth + 1)
		return root.scrollWidth + ' px of ' + root.clientWidth + ': ' + wide.slice(0, 5).map((e) => e.tagName + '.' + e.className).join(' ')
	})()`)
	assert.Empty(t, wide, "the page is wider than the window at %s", what)
}

// maxNodes bounds the elements of a page, whatever the size of the fleet.
const maxNodes = 4000

// TestPages shows all pages on a bad day in each run, and a third of them on a good one.
func TestPages(t *testing.T) {
	for scenario, shown := range map[string][]page{playedfleet.Burning: pages, playedfleet.Healthy: testenv.TurnShare(pages)} {
		p := openStanding(t, scenario)
		for _, of := range shown {
			t.Run(scenario+"/"+of.name, func(t *testing.T) {
				checkPage(t, chromium.OpenPage(t, p.options()), of)
			})
		}
	}
}

// A fleet without members has pages without rows: none of them is empty of words.
func TestPagesOfAnEmptyFleet(t *testing.T) {
	p := openStanding(t, playedfleet.Empty)
	for _, of := range testenv.TurnShare(pages) {
		if of.name == "rollout" || of.name == "cluster" || of.name == "image" || of.name == "report" {
			continue // there is none
		}
		t.Run(of.name, func(t *testing.T) {
			opened := chromium.OpenPage(t, p.options())
			checkPage(t, opened, of)
			assert.Greater(t, browser.Evaluate[int](t, opened, "document.querySelector('main').innerText.length"), 40, "it says nothing")
		})
	}
}

// TestAccessibility checks each page on a bad day, in both themes, with axe-core, in a narrow
// window, and at 200 %.
func TestAccessibility(t *testing.T) {
	p := openStanding(t, playedfleet.Burning)
	for _, of := range testenv.TurnShare(pages) {
		for _, dark := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/dark=%v", of.name, dark), func(t *testing.T) {
				o := p.options()
				o.Dark, o.ReducedMotion = dark, true
				opened := chromium.OpenPage(t, o)
				opened.Visit(t, of.path)
				require.NoError(t, opened.AwaitQuiet())
				opened.CheckAccessibility(t)
				if dark {
					return
				}
				assert.Zero(t, browser.Evaluate[int](t, opened, "document.getAnimations().filter((a) => a.playState === 'running').length"), "something moves")
				for what, size := range map[string][2]int64{"390 px": {390, 844}, "200 %": {640, 450}} {
					opened.Resize(t, size[0], size[1])
					require.NoError(t, opened.AwaitQuiet())
					checkWidth(t, opened, what)
				}
			})
		}
	}
}
