//go:build linux

package dashboard_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
)

// What members write is shown as text: it neither runs, nor loads anything, nor hides what is
// beside it, nor tears the page apart.
func TestHostileMembers(t *testing.T) {
	p := openStanding(t, playedfleet.Hostile)
	opened := chromium.OpenPage(t, p.options())
	shown := map[string]bool{}
	paths := []string{"/", "/transfers", "/rollouts", "/rollouts/ubuntu", "/clusters", "/images", "/images/ubuntu", "/cleanup", "/cleanup/hostile?others=1", "/cleanup/hostile?others=1&view=list", "/policy", "/profile"}
	for _, member := range p.MemberNames() {
		paths = append(paths, "/clusters/"+member)
	}
	for _, path := range paths {
		opened.Visit(t, path)
		require.NoError(t, opened.AwaitQuiet())
		checkHarmless(t, opened, path)
		text := opened.Text(t)
		for _, hostile := range playedfleet.HostileTexts {
			if plain := strings.TrimSpace(plainPart(hostile)); strings.Contains(text, plain) {
				shown[hostile] = true
			}
		}
	}
	for _, hostile := range playedfleet.HostileTexts {
		assert.True(t, shown[hostile], "no page shows %q: the test shows nothing", hostile)
	}
}

// checkHarmless checks that nothing of a hostile text took effect.
func checkHarmless(t *testing.T, p *browser.Page, path string) {
	t.Helper()
	assert.Equal(t, "undefined", browser.Evaluate[string](t, p, "typeof window.hostile"), "%s: a script ran", path)
	assert.Empty(t, browser.Evaluate[[]string](t, p, "[...document.querySelectorAll('a[href]')].map((a) => a.protocol).filter((p) => !['http:', 'https:'].includes(p))"), "%s: a link runs a script", path)
	assert.Empty(t, browser.Evaluate[[]string](t, p, "[...document.querySelectorAll('main img, main script, main iframe, main svg[onload]')].map((e) => e.outerHTML)"), "%s: markup was taken for elements", path)
	assert.Empty(t, browser.Evaluate[[]string](t, p, `(document.body.innerText.match(/.{0,40}[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g) ?? []).map((m) => JSON.stringify(m))`), "%s: characters that hide others", path)
	checkWidth(t, p, path)
}

// plainPart is the longest part of a text that every screen shows as it is, cut where a page may
// shorten it.
func plainPart(text string) string {
	longest := ""
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		if len(part) > len(longest) {
			longest = part
		}
	}
	return longest[:min(len(longest), 24)]
}
