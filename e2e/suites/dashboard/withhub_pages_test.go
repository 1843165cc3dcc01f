//go:build linux

package dashboard_test

import "testing"

// Each page over a real hub and real agents.
func TestPagesOfARealHub(t *testing.T) {
	f := openHub(t)
	f.createWaiting(t, "everywhere")
	p := f.openSignedIn(t, anna, "/")
	for _, path := range []string{"/", "/transfers", "/rollouts", "/rollouts/everywhere", "/clusters", "/clusters/bergen", "/images", "/images/everywhere", "/cleanup", "/policy", "/profile"} {
		checkPage(t, p, page{path, path, true})
	}
}
