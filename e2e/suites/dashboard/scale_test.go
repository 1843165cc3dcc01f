//go:build linux

package dashboard_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// maxFirstLoad bounds what opening a page transfers with an empty cache.
	maxFirstLoad = 150_000
	// maxIdlePerSecond bounds what an open page of a fleet transfers in which nothing changes.
	maxIdlePerSecond = 2_000
	// slowerThanSmall bounds how many times longer the main thread may work on a frame of the large
	// fleet than on one of the small one, which is 24 times smaller.
	slowerThanSmall = 4
)

// largePages are pages with the objects of the scenario Large.
var largePages = []page{
	{"fleet", "/", true},
	{"transfers", "/transfers", true},
	{"rollouts", "/rollouts", true},
	{"rollout", "/rollouts/image-007", true},
	{"clusters", "/clusters", true},
	{"cluster", "/clusters/africa-001", true},
	{"images", "/images", true},
	{"image", "/images/image-007", true},
	{"cleanup", "/cleanup", true},
	{"policy", "/policy", true},
}

// TestLargeFleet opens each page over 1,000 clusters with 200 images each.
func TestLargeFleet(t *testing.T) {
	testenv.RunInTurn(t, 3)
	p := openStanding(t, playedfleet.Large)
	for _, of := range largePages {
		t.Run(of.name, func(t *testing.T) {
			opened := chromium.OpenPage(t, p.options())
			checkPage(t, opened, of)
			transferred := opened.Transferred()
			t.Logf("%d bytes, %d elements", transferred, browser.Evaluate[int](t, opened, "document.querySelectorAll('*').length"))
			assert.LessOrEqual(t, transferred, int64(maxFirstLoad))
		})
	}
}

// A page of a fleet in which nothing changes transfers next to nothing.
func TestIdlePage(t *testing.T) {
	testenv.RunInTurn(t, 28)
	p := openStanding(t, playedfleet.Large)
	opened := chromium.OpenPage(t, browser.Options{Origin: p.origin})
	opened.Visit(t, "/")
	opened.AwaitTrue(t, "document.querySelector('[role=grid] [role=rowheader]') !== null")
	require.NoError(t, opened.AwaitQuiet())
	before, from := opened.Transferred(), browser.Evaluate[float64](t, opened, "performance.now()")
	const seconds = 8
	opened.AwaitTrue(t, fmt.Sprintf("performance.now() > %f", from+seconds*1000))
	idle := opened.Transferred() - before
	t.Logf("%d bytes in %d s", idle, seconds)
	assert.LessOrEqual(t, idle, int64(maxIdlePerSecond*seconds))
}

// scrolledFrames is how many frames scrollMatrix takes.
const scrolledFrames = 60

// scrollMatrix scrolls the matrix frame by frame.
var scrollMatrix = fmt.Sprintf(`new Promise((resolve) => {
	const grid = document.querySelector('[role=grid]')
	let n = 0
	const step = () => {
		if (n === %d) return resolve(n)
		n++
		grid.scrollTop = (n * 37) %% Math.max(1, grid.scrollHeight - grid.clientHeight)
		requestAnimationFrame(step)
	}
	requestAnimationFrame(step)
})`, scrolledFrames)

// TestScrolling compares scrolling 200,000 cells with scrolling those of 41 clusters, in one run.
func TestScrolling(t *testing.T) {
	testenv.RunInTurn(t, 8)
	frame := map[string]float64{}
	for _, scenario := range []string{playedfleet.Healthy, playedfleet.Large} {
		opened := chromium.OpenPage(t, openStanding(t, scenario).options())
		opened.Visit(t, "/")
		opened.AwaitTrue(t, "document.querySelector('[role=grid] [role=rowheader]') !== null")
		require.NoError(t, opened.AwaitQuiet())
		var tries []float64
		for range 3 {
			before := opened.CPUTime(t)
			require.Equal(t, scrolledFrames, browser.Evaluate[int](t, opened, scrollMatrix))
			tries = append(tries, 1000*(opened.CPUTime(t)-before)/scrolledFrames)
		}
		frame[scenario] = slices.Min(tries)
		assert.Less(t, browser.Evaluate[int](t, opened, "document.querySelectorAll('*').length"), maxNodes)
	}
	t.Logf("%.1f ms of CPU per frame with 41 clusters, %.1f ms with 1,000", frame[playedfleet.Healthy], frame[playedfleet.Large])
	require.Positive(t, frame[playedfleet.Healthy])
	assert.Less(t, frame[playedfleet.Large], frame[playedfleet.Healthy]*slowerThanSmall)
}
