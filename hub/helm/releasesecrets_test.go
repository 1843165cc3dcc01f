package helm

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/transport"
)

// compressedRelease returns what Helm stores for a release, followed by spaces.
func compressedRelease(text string, mebibytes int) []byte {
	return []byte(base64.StdEncoding.EncodeToString(apitest.CompressPadded(text, ' ', mebibytes, "")))
}

func releaseSecret(name string, data []byte) corev1.Secret {
	return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": "ot-agent", "owner": "helm"}}, Data: map[string][]byte{"release": data}}
}

// A member's release Secrets cannot make the hub allocate more than it reads of an honest
// member, times a constant.
func TestHostileReleasesAreNotDecoded(t *testing.T) {
	const small = `{"name":"ot-agent","version":1,"info":{"status":"deployed"}}`
	bomb := compressedRelease(small, 580)
	require.Less(t, len(bomb), 796<<10)
	many := func(n int, data []byte) (all []corev1.Secret) {
		for i := range n {
			all = append(all, releaseSecret(fmt.Sprintf("sh.helm.release.v1.ot-agent.v%d", i), data))
		}
		return all
	}
	allocated := map[string]uint64{}
	for _, tt := range []struct {
		name    string
		secrets []corev1.Secret
		more    string
		want    string
	}{
		{"honest", many(10, compressedRelease(small, 1)), "", ""},
		{"decompresses to hundreds of megabytes", many(1, bomb), "", "a release of more than 4 MiB when decompressed"},
		{"many values", many(1, compressedRelease(`{"config":{"a":[`+strings.Repeat("1,", 1<<20)+"1]}}", 0)), "", "a release of more than 4 MiB when decompressed"},
		{"many values, not compressed", many(1, []byte(base64.StdEncoding.EncodeToString([]byte(`{"config":{"a":[`+strings.Repeat("1,", 1<<18)+"1]}}")))), "", "a release of more than 4 MiB when decompressed"},
		{"in two parts", many(1, []byte(base64.StdEncoding.EncodeToString(append(decode(t, compressedRelease(small, 1)), decode(t, bomb)...)))), "", "a release of more than 4 MiB when decompressed"},
		{"large together", many(16, compressedRelease(small, 3)), "", "releases of more than 32 MiB when decompressed"},
		{"many", many(40, compressedRelease(small, 0)), "", "has more than 32"},
		{"more on another page", many(1, compressedRelease(small, 0)), "more", "has more than 32"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := json.Marshal(corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}, ListMeta: metav1.ListMeta{Continue: tt.more}, Items: tt.secrets})
			require.NoError(t, err)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(text)
			}))
			defer server.Close()
			m, err := NewMember(t.Context(), &rest.Config{Host: server.URL}, Options{Namespace: "ot-agent", RequestTimeout: time.Minute})
			require.NoError(t, err)
			defer m.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			found, err := m.GetRelease("ot-agent")
			runtime.ReadMemStats(&after)
			allocated[tt.name] = after.TotalAlloc - before.TotalAlloc
			t.Logf("%d KiB allocated for %d KiB", allocated[tt.name]>>10, len(text)>>10)
			if tt.want == "" {
				require.NoError(t, err)
				require.Equal(t, "ot-agent", found.Name)
				return
			}
			var limit *transport.LimitError
			require.ErrorAs(t, err, &limit)
			assert.Contains(t, limit.Error(), tt.want)
			assert.Less(t, allocated[tt.name], 2*allocated["honest"])
		})
	}
}

func decode(t *testing.T, text []byte) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(string(text))
	require.NoError(t, err)
	return data
}

// Helm's default history of the agent's chart, with a manifest as large as an agent's with
// all definitions, is within the bounds.
func TestReleasesOfChartAreWithinBounds(t *testing.T) {
	loaded, err := loadTestChart(t, "v0.3.0").loadCopy()
	require.NoError(t, err)
	releases := storage.Init(driver.NewSecrets(boundedSecrets{fake.NewClientset().CoreV1().Secrets("ot-agent")}))
	for number := range 10 {
		require.NoError(t, releases.Create(&release.Release{
			Name: "ot-agent", Namespace: "ot-agent", Version: number + 1, Chart: loaded, Info: &release.Info{Status: common.StatusDeployed},
			Manifest: strings.Repeat("# a line of the manifest, of which there are many\n", 10_000),
		}))
	}
	last, err := releases.Last("ot-agent")
	require.NoError(t, err)
	require.Equal(t, 10, last.(*release.Release).Version)
}
