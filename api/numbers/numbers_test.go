package numbers_test

import (
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/numbers"
)

var rewrite = flag.Bool("rewrite", false, "write the corpus of the dashboard's tests anew")

func TestFormat(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 7: "7", 999: "999", 1000: "1,000", 12345: "12,345", 999999: "999,999", 1000000: "1,000,000", -1: "-1", -999: "-999", -1000: "-1,000",
		-123456: "-123,456", math.MaxInt64: "9,223,372,036,854,775,807", math.MinInt64: "-9,223,372,036,854,775,808",
	} {
		assert.Equal(t, want, numbers.Format(n))
	}
}

func TestSprintf(t *testing.T) {
	assert.Equal(t, "1,200 of 40,000 images, 1234, 004321, 3.5, 1500", numbers.Sprintf("%d of %v %s, %s, %06d, %v, %s", 1200, int64(40000), "images", "1234", int32(4321), 3.5, "1500"))
}

// The dashboard's tests read the numbers as they are here, and format them the same.
func TestCorpus(t *testing.T) {
	const path = "../../ui/src/testdata/numbers.json"
	type pair struct {
		N    int64  `json:"n"`
		Text string `json:"text"`
	}
	random := rand.New(rand.NewPCG(1, 2))
	var corpus []pair
	for exponent := range 15 {
		power := int64(math.Pow10(exponent))
		for _, n := range []int64{power - 1, power, random.Int64N(9*power) + power, -power} {
			corpus = append(corpus, pair{n, numbers.Format(n)})
		}
	}
	got, err := json.MarshalIndent(corpus, "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	if *rewrite {
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "run go test ./api/numbers -rewrite, and npm test in ui")
}
