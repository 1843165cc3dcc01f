package health

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type transportFunc func() (*http.Response, error)

func (a transportFunc) RoundTrip(*http.Request) (*http.Response, error) { return a() }

func TestAPIServerMonitor(t *testing.T) {
	status := func(code int) transportFunc {
		return func() (*http.Response, error) {
			return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: http.NoBody}, nil
		}
	}
	fails := func(err error) transportFunc { return func() (*http.Response, error) { return nil, err } }
	refused := fails(errors.New("connection refused"))
	for name, test := range map[string]struct {
		// responses to requests 20 s apart; the probe is 20 s after the last.
		met  []transportFunc
		want string
	}{
		"nothing was asked":              {nil, ""},
		"it answers":                     {[]transportFunc{status(200), status(200)}, ""},
		"it says no":                     {[]transportFunc{status(403), status(404), status(429), status(500)}, ""},
		"away for a moment":              {[]transportFunc{status(200), refused}, ""},
		"away":                           {[]transportFunc{status(200), refused, refused}, "the API server has not answered for 40s: connection refused"},
		"away since long":                {[]transportFunc{refused, refused, refused}, "for 1m0s: connection refused"},
		"its balancer answers":           {[]transportFunc{status(502), status(503), status(504)}, "for 1m0s: GET /api: Gateway Timeout"},
		"back":                           {[]transportFunc{refused, refused, refused, status(200)}, ""},
		"answers some":                   {[]transportFunc{refused, refused, status(200), refused}, ""},
		"the program has called it off":  {[]transportFunc{fails(context.Canceled), fails(context.Canceled), fails(context.Canceled)}, ""},
		"a request has run out of time":  {[]transportFunc{fails(context.DeadlineExceeded), fails(context.DeadlineExceeded)}, "context deadline exceeded"},
		"calling off is no answer":       {[]transportFunc{refused, fails(context.Canceled), fails(context.Canceled)}, "for 1m0s: connection refused"},
		"away, the last fault is of now": {[]transportFunc{refused, fails(errors.New("no route to host"))}, "for 40s: no route to host"},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Time{}.Add(time.Hour)
			c := &APIServerMonitor{now: func() time.Time { return now }}
			for _, met := range test.met {
				response, err := c.WrapTransport(met).RoundTrip(httptest.NewRequest(http.MethodGet, "/api", nil))
				if err == nil {
					require.NoError(t, response.Body.Close())
				}
				now = now.Add(20 * time.Second)
			}
			err := c.Check(nil)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestUnsyncedCacheFailsCheck(t *testing.T) {
	full := func(context.Context) bool { return true }
	never := func(ctx context.Context) bool { <-ctx.Done(); return false }
	request := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	require.NoError(t, CachesSynced(map[string]func(context.Context) bool{"images": full})(request))
	require.EqualError(t, CachesSynced(map[string]func(context.Context) bool{"images": full, "machines": never})(request), "the cache of machines is not synced yet")
}

// A check that keeps failing is logged once, with its error.
func TestTransitionsAreLoggedOnce(t *testing.T) {
	var said []string
	log := funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{})
	var err error
	check := LogTransitions(log, func(*http.Request) error { return err })
	require.NoError(t, check(nil))
	err = errors.New("the API server is away")
	require.ErrorIs(t, check(nil), err)
	require.ErrorIs(t, check(nil), err)
	err = nil
	require.NoError(t, check(nil))
	require.NoError(t, check(nil))
	require.Len(t, said, 2)
	assert.Contains(t, said[0], "the API server is away")
	assert.Contains(t, said[1], "Ready again")
}
