//go:build linux

package mirror_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const changedPath = "/ubuntu/disk.qcow2"

// soonStale has a mirror ask again for slices that are a second old.
var soonStale = []string{"proxy_cache_valid 206 1h;", "proxy_cache_valid 206 1s;"}

// replaceMidway downloads by a mirror a file that is replaced once half of it has been sent. It is
// one request: between several the slices that are stored may become too old.
func replaceMidway(t *testing.T, source *origin, i importer, m *mirror, old, replaced []byte) (got string, err error) {
	t.Helper()
	source.put(changedPath, old)
	release := source.holdRequests(changedPath, 2*slice)
	defer release()
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err = i.downloadWhole(t.Context(), m.url(changedPath))
	}()
	require.True(t, testenv.AwaitCondition(t, func() bool { return source.countHeld(changedPath) > 0 }), "no request for the third slice")
	source.put(changedPath, replaced)
	release()
	<-done
	return got, err
}

// TestFileThatChangesIsNeverMixed: nginx ends an answer when the file has changed, and serves the
// new file as soon as the stored slices of the old one are too old.
func TestFileThatChangesIsNeverMixed(t *testing.T) {
	source, keys := newOrigin(t)
	m := newMirror(t, net.JoinHostPort(sites[0], newPort(t)), source.host(), keys, soonStale...)
	m.start(t)
	i, old, replaced := newImporter(keys.authority), newContent(4), newContent(4)

	got, err := replaceMidway(t, source, i, m, old, replaced)
	require.ErrorContains(t, err, "Unable to process data", "old %s, new %s, got %s", digest(old), digest(replaced), got)
	assert.Contains(t, m.errors(), "etag mismatch in slice response")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		got, err := i.download(t.Context(), m.url(changedPath))
		if err == nil {
			require.Equal(t, digest(replaced), got)
		}
		return err == nil
	}), "the mirror does not serve the new file: %s", m.errors())
}

// TestChecksumFindsMixedFile: an origin that sends no ETag leaves nginx nothing to compare. What it
// serves then is neither file, so that the image needs its checksum.
func TestChecksumFindsMixedFile(t *testing.T) {
	source, keys := newOrigin(t)
	source.omitETag()
	m := newMirror(t, net.JoinHostPort(sites[0], newPort(t)), source.host(), keys)
	m.start(t)
	old, replaced := newContent(4), newContent(4)

	got, err := replaceMidway(t, source, newImporter(keys.authority), m, old, replaced)
	require.NoError(t, err)
	assert.NotContains(t, []string{digest(old), digest(replaced)}, got)
}

// TestStaleSlicesAreNotSentAgain: a mirror asks the origin whether its slices are still the same, and
// gets them once.
func TestStaleSlicesAreNotSentAgain(t *testing.T) {
	source, keys := newOrigin(t)
	content := newContent(2)
	source.put(changedPath, content)
	m := newMirror(t, net.JoinHostPort(sites[0], newPort(t)), source.host(), keys, soonStale...)
	m.start(t)
	i := newImporter(keys.authority)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		got, err := i.download(t.Context(), m.url(changedPath))
		require.NoError(t, err)
		require.Equal(t, digest(content), got)
		return source.countNotModified(changedPath) >= 3
	}), "the origin was not asked again")
	assert.EqualValues(t, len(content), source.sentBytes(changedPath))
}

// TestMirrorForwardsNoCredentials: what a cluster sends by mistake does not reach the origin, and
// nothing is stored there.
func TestMirrorForwardsNoCredentials(t *testing.T) {
	source, keys := newOrigin(t)
	source.put(changedPath, newContent(1))
	m := newMirror(t, net.JoinHostPort(sites[0], newPort(t)), source.host(), keys)
	m.start(t)
	for method, want := range map[string]int{http.MethodGet: http.StatusOK, http.MethodHead: http.StatusOK, http.MethodPut: http.StatusForbidden} {
		request, err := http.NewRequestWithContext(t.Context(), method, m.url(changedPath), nil)
		require.NoError(t, err)
		request.SetBasicAuth("user", "password")
		response, err := newImporter(keys.authority).Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		assert.Equal(t, want, response.StatusCode, method)
	}
	assert.Zero(t, source.countLogins())
	assert.Positive(t, source.sentBytes(changedPath))
}
