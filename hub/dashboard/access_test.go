package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
)

// reviewingServer counts the reviews of tokens, which it answers as change says.
func reviewingServer(t *testing.T, change func(*authenticationv1.TokenReview)) (*Access, *atomic.Int64) {
	t.Helper()
	var count atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		count.Add(1)
		review := &authenticationv1.TokenReview{}
		_ = json.NewDecoder(request.Body).Decode(review)
		change(review)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	access, err := NewAccess(&rest.Config{Host: server.URL, QPS: 10_000, Burst: 10_000, Timeout: time.Minute, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	return access, &count
}

// Tokens without end cost the API server no more reviews than the limit, however fast the hub's own
// client may be. One that is asked about again costs none.
func TestReviewsAreBounded(t *testing.T) {
	access, count := reviewingServer(t, func(*authenticationv1.TokenReview) {})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		for i := range 3 * reviewQPS {
			_, _ = access.userOf(ctx, randomToken(i+1))
		}
	}()
	require.Eventually(t, func() bool { return count.Load() >= 2*reviewQPS }, time.Minute, time.Millisecond, "the burst")
	for range 100 {
		_, err := access.userOf(t.Context(), randomToken(1))
		require.ErrorIs(t, err, errNotAccepted)
	}
	<-done
	cancel()
	assert.Equal(t, int64(3*reviewQPS), count.Load(), "one for each token")
	assert.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond, "those after the burst waited their turn: 1 s at 50 a second")
}

// What the API server says of a token that it does not accept names nobody.
func TestTokensOfNobody(t *testing.T) {
	for name, change := range map[string]func(*authenticationv1.TokenReviewStatus){
		"refused":              func(*authenticationv1.TokenReviewStatus) {},
		"refused with reasons": func(s *authenticationv1.TokenReviewStatus) { s.Error = "expired"; s.User.Username = "anna" },
		"without a name":       func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = true },
		"anonymous": func(s *authenticationv1.TokenReviewStatus) {
			s.Authenticated, s.User.Username = true, "system:anonymous"
		},
	} {
		t.Run(name, func(t *testing.T) {
			access, _ := reviewingServer(t, func(review *authenticationv1.TokenReview) { change(&review.Status) })
			of, err := access.userOf(t.Context(), "abc")
			require.ErrorIs(t, err, errNotAccepted)
			assert.Nil(t, of)
		})
	}
}
