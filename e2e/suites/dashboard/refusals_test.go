//go:build linux

package dashboard_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Each page says what is the matter where it gets no answer, what to do, and by itself shows the
// answer that it then gets.
func TestRefusalsOnEachPage(t *testing.T) {
	for name, tt := range map[string]struct {
		status              int
		retryAfter, message string
		want                []string
		ends                bool
	}{
		"no right":      {http.StatusForbidden, "", "Authorization denied for user anna@example.com", []string{"Not allowed:", "Authorization denied", "get /fleet/v1/*", "ot-hub-reader"}, false},
		"an older hub":  {http.StatusNotFound, "", readapi.UnknownPathMessage + ", only /fleet/v1/members", []string{"This hub is older than the page:"}, false},
		"none elected":  {http.StatusServiceUnavailable, "2", "no replica of the hub is elected", []string{"No hub answers now:", "no replica of the hub is elected", "The next try is in"}, true},
		"not reachable": {http.StatusBadGateway, "", "the hub does not answer", []string{"No hub answers now:", "The next try is in"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := openOwn(t, playedfleet.Burning, "")
			p := chromium.OpenPage(t, f.options())
			p.Announce("403 /fleet/v1/", "404 /fleet/v1/", "503 /fleet/v1/", "502 /fleet/v1/", "/fleet/v1/events")
			for _, is := range testenv.TurnShare(pages) {
				if is.path == "/profile" || !is.command {
					continue // it asks nothing of the hub
				}
				f.faults.set(refuseReads(tt.status, tt.retryAfter, tt.message))
				p.Visit(t, is.path)
				for _, text := range tt.want {
					p.AwaitText(t, text)
				}
				shown := browser.Evaluate[string](t, p, "location.pathname + location.search")
				assert.Equal(t, is.path, shown, "the address stays")
				if tt.ends && strings.HasPrefix(is.path, "/cleanup") {
					f.faults.set(nil)
					p.AwaitNoText(t, tt.want[0])
				}
			}
		})
	}
}
