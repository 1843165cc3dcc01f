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
	if IsLong() {
		for name, value := range map[string]string{"rapid.checks": "5000", "rapid.steps": "100"} {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
}

// IsLong reports whether OT_FLEET_LONG is set.
func IsLong() bool { return os.Getenv("OT_FLEET_LONG") != "" }

// SkipUnlessLong skips a test unless OT_FLEET_LONG is set.
func SkipUnlessLong(t *testing.T) {
	t.Helper()
	if !IsLong() {
		t.Skip("set OT_FLEET_LONG=1")
	}
}
