package apitest

import (
	"flag"
	"os"
	"testing"
)

// RunPropertyTests runs the tests of a package with properties of pgregory.net/rapid,
// which look further where OT_FLEET_LONG is set. It is for TestMain.
func RunPropertyTests(m *testing.M) {
	ExtendPropertyChecks()
	os.Exit(m.Run())
}

// ExtendPropertyChecks has properties look further where OT_FLEET_LONG is set. It is for a
// TestMain that has more to do.
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
