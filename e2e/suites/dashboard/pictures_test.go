//go:build linux

package dashboard_test

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var rewrite = flag.Bool("rewrite", false, "write the pictures in docs/pictures")

const (
	picturesDirectory = "../../../docs/pictures"
	// renderingFile describes the fonts and the chromium that the pictures are drawn with.
	renderingFile = "testdata/rendering"
	// maxPictureBytes bounds a picture, so that a page of the documentation with some loads fast.
	maxPictureBytes = 120_000
	// maxDifference is the share of pixels in which a page may differ from its picture.
	maxDifference = 0.01
)

// picture is one page as the documentation shows it.
type picture struct {
	name, scenario, path string
	width, height        int64
}

// pictures are the pages on a bad day. Of those that everybody opens there is one in a narrow window,
// too, and one of a good day.
func pictures() []picture {
	all := []picture{
		{"fleet-healthy", playedfleet.Healthy, "/", 1280, 900},
		{"fleet-large", playedfleet.Large, "/?zoom=6", 1280, 900},
		{"fleet-empty", playedfleet.Empty, "/", 1280, 700},
		{"fleet-narrow", playedfleet.Burning, "/", 390, 844},
		{"rollout-narrow", playedfleet.Burning, "/rollouts/win-11", 390, 844},
	}
	for _, of := range pages {
		if of.name != "notfound" {
			all = append(all, picture{of.name, playedfleet.Burning, of.path, 1280, 900})
		}
	}
	return all
}

// TestPictures draws a share of the pages over a fleet that stands still, and compares it with its picture in
// docs/pictures. With -rewrite, as make pictures does, it writes all of them instead.
func TestPictures(t *testing.T) {
	checkRendering(t)
	shown := pictures()
	if !*rewrite {
		shown = testenv.TurnShare(shown)
	}
	for _, of := range shown {
		for _, theme := range []string{"light", "dark"} {
			t.Run(of.name+"-"+theme, func(t *testing.T) {
				drawn := drawPicture(t, of, theme == "dark")
				file := filepath.Join(picturesDirectory, of.name+"-"+theme+".png")
				text, err := browser.EncodeSmall(drawn)
				require.NoError(t, err)
				assert.LessOrEqual(t, len(text), maxPictureBytes, "the picture is too large")
				if *rewrite {
					require.NoError(t, os.MkdirAll(picturesDirectory, 0o755))
					require.NoError(t, os.WriteFile(file, text, 0o644))
					return
				}
				before, err := os.ReadFile(file)
				require.NoError(t, err, "make pictures draws it")
				known, err := png.Decode(bytes.NewReader(before))
				require.NoError(t, err)
				fresh, err := png.Decode(bytes.NewReader(text)) // with the same palette
				require.NoError(t, err)
				if d := browser.Difference(known, fresh); d > maxDifference {
					seen := filepath.Join(t.ArtifactDir(), of.name+"-"+theme+".png")
					require.NoError(t, os.WriteFile(seen, text, 0o644))
					t.Errorf("%.1f %% of the pixels differ from %s: look at %s, and run make pictures if that is wanted", 100*d, filepath.Base(file), seen)
				}
			})
		}
	}
}

func drawPicture(t *testing.T, of picture, dark bool) image.Image {
	t.Helper()
	o := openStanding(t, of.scenario).options()
	o.Dark, o.ReducedMotion, o.Width, o.Height = dark, true, of.width, of.height
	p := chromium.OpenPage(t, o)
	p.Visit(t, of.path)
	require.NoError(t, p.AwaitQuiet())
	p.AwaitTrue(t, "!document.querySelector('main .skeleton')")
	drawn, err := p.Capture(false)
	require.NoError(t, err)
	return drawn
}

// checkRendering skips a test on a machine with other fonts, or another chromium, than those of the
// pictures.
func checkRendering(t *testing.T) {
	t.Helper()
	p := chromium.OpenPage(t, openStanding(t, playedfleet.Empty).options())
	p.Visit(t, "/")
	widths := browser.Evaluate[[]float64](t, p, `['system-ui', 'sans-serif', 'monospace'].map((family) => {
		const context = document.createElement('canvas').getContext('2d')
		context.font = '14px ' + family
		return context.measureText('Clusters and images 0123456789 ✓✗◌').width
	})`)
	version := browser.Evaluate[string](t, p, `/Chrome\/(\d+)/.exec(navigator.userAgent)[1]`)
	rendering := fmt.Sprintf("chromium %s, fonts %.2f", version, widths)
	if *rewrite {
		require.NoError(t, os.MkdirAll(filepath.Dir(renderingFile), 0o755))
		require.NoError(t, os.WriteFile(renderingFile, []byte(rendering+"\n"), 0o644))
		return
	}
	known, err := os.ReadFile(renderingFile)
	require.NoError(t, err, "make pictures writes it")
	if strings.TrimSpace(string(known)) != rendering {
		t.Skipf("the pictures were drawn with %s, and this machine has %s", strings.TrimSpace(string(known)), rendering)
	}
}
