package apitest

import (
	"flag"
	"os"
	"testing"
)

// RunPropertyTests runs the tests of a package with more iterations of
// pgregory.net/rapid properties if OT_FLEET_LONG is set. For TestMain.
func RunPropertyTests(m *testing.M) {
	ExtendPropertyChecks()
	os.Exit(m.Run())
}

// ExtendPropertyChecks sets more iterations if OT_FLEET_LONG is set. For a TestMain
// that does more.
func ExtendPropertyChecks() {
	flag.Parse()
	if os.Getenv("OT_FLEET_LONG") != "" {
		for name, value := range map[string]string{"rapid.checks": "5000", "rapid.steps": "100"} {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
}
