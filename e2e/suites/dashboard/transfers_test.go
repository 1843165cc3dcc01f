//go:build linux

package dashboard_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
)

// Images that clusters count without naming them may match a filter or not: the page says "up to".
func TestUnlistedTransfers(t *testing.T) {
	p := openOwn(t, playedfleet.Healthy, "")
	p.faults.set(func(w http.ResponseWriter, request *http.Request) bool {
		if request.URL.Path != readapi.Root+"transfers" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(readapi.Transfers{Running: []readapi.Transfer{}, Queued: []readapi.Transfer{}, Unlisted: 7}) // the page is gone
		return true
	})
	opened := chromium.OpenPage(t, p.options())
	for query, want := range map[string]string{
		"":                "7 more images wait behind these",
		"?cluster=bergen": "7 more images wait behind these",
		"?source=other":   "Up to 7 more images, of unknown sources and names",
		"?q=ubuntu":       "Up to 7 more images, of unknown sources and names",
	} {
		opened.Visit(t, "/transfers"+query)
		opened.AwaitText(t, want)
	}
}
