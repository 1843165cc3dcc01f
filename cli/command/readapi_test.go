package command

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/cli/connect"
)

// TestReadAPIIsAskedAgainByANewConnection: the token of a connection is valid for ten minutes, and the
// elected replica changes; a screen lacks nothing for either. One that refuses all is asked once more.
func TestReadAPIIsAskedAgainByANewConnection(t *testing.T) {
	refused, requests := map[int]bool{2: true}, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; refused[requests] {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	e := &environment{Flags: connect.NewFlags()}
	e.ReadAPI = server.URL
	hub := &connect.Cluster{Config: &rest.Config{BearerToken: "token"}}
	ask := func() string {
		unread, err := e.askReadAPI(t.Context(), hub, func(api *connect.ReadAPI) error {
			_, err := api.Summary(t.Context())
			return err
		})
		require.NoError(t, err)
		return unread
	}
	assert.Empty(t, ask())
	assert.Empty(t, ask(), "the token has ended")
	assert.Equal(t, 3, requests)
	refused = map[int]bool{4: true, 5: true}
	assert.Contains(t, ask(), "without its read API")
	assert.Equal(t, 5, requests, "once more, and no further")
	refused = map[int]bool{6: true}
	assert.Contains(t, ask(), "without its read API", "of a new connection it is not the age")
	assert.Equal(t, 6, requests)
	e.closeReadAPI()
}

// TestRefusalsOfTheReadAPIAreAnswers: what the read API says of a question is not taken for its absence.
func TestRefusalsOfTheReadAPIAreAnswers(t *testing.T) {
	const message = "member bergen reports no VMDiskImage vmdi-farm/nope, and no plan of it"
	for name, test := range map[string]struct {
		status                int
		answer                string
		wantError, wantUnread string
	}{
		"not found":         {http.StatusNotFound, `{"error": "` + message + `"}`, message, ""},
		"invalid":           {http.StatusBadRequest, `{"error": "limit must be a number"}`, "limit must be a number", ""},
		"an older hub":      {http.StatusNotFound, `{"error": "` + readapi.UnknownPathMessage + `, only /fleet/v1/a"}`, "", "upgrade the hub"},
		"a proxy's answer":  {http.StatusNotFound, ``, "", "upgrade the hub"},
		"not at the moment": {http.StatusServiceUnavailable, `{"error": "it starts"}`, "", "it starts"},
		"forbidden":         {http.StatusForbidden, `forbidden`, "", "not open to you"},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests++
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.answer))
			}))
			defer server.Close()
			e := &environment{Flags: connect.NewFlags()}
			e.ReadAPI = server.URL
			hub := &connect.Cluster{Config: &rest.Config{BearerToken: "token"}}
			asked := 0
			for range 2 {
				unread, err := e.askReadAPI(t.Context(), hub, func(api *connect.ReadAPI) error {
					asked++
					_, err := api.Why(t.Context(), "bergen", "vmdi-farm", "nope")
					return err
				})
				if test.wantError != "" {
					require.EqualError(t, err, test.wantError)
				} else {
					require.NoError(t, err)
				}
				assert.Contains(t, unread, test.wantUnread)
				assert.Equal(t, test.wantUnread == "", unread == "")
			}
			assert.Equal(t, asked, requests)
			assert.Equal(t, 2, asked)
		})
	}
}
