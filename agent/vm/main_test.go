package vm_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets the properties look further where OT_FLEET_LONG is set.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv("OT_FLEET_LONG") != "" {
		for name, value := range map[string]string{"rapid.checks": "5000", "rapid.steps": "100"} {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}
