package diagnosis_test

import (
	"testing"

	"github.com/pelotech/ot-fleet/api/apitest"
)

func TestMain(m *testing.M) { apitest.RunPropertyTests(m) }
