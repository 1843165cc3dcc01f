//go:build linux

package doctor_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// readArchive returns the files of a tar.gz.
func readArchive(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	compressed, err := gzip.NewReader(file)
	require.NoError(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(archive)
		require.NoError(t, err)
		files[header.Name] = string(text)
	}
}

// Secrets of a machine and of an image's source are in no file of the bundle; names, states and
// doctor's findings are.
func TestSupportBundleHasNoSecrets(t *testing.T) {
	namespace := createFarm(t)
	vm := testenv.NewMachine(namespace, "desk", env.NewImage(namespace, "ubuntu", ""))
	vm.Spec.IgnoreOnDeploy = true
	vm.Spec.Users = []v1alpha1.User{{Name: "anna", PlainTextPasswd: "planted-password-1", SSHAuthorizedKeys: []string{"ssh-ed25519 planted-key-2"}}}
	vm.Spec.CloudInit = &v1alpha1.CloudInit{UserData: "#cloud-config\nchpasswd: {list: 'root:planted-data-3'}\n"}
	vm.Annotations = map[string]string{"example.com/note": "planted-annotation-4"}
	createUntilEnd(t, vm)
	img := env.NewImage(namespace, "signed", "/ok/a.qcow2?X-Signature=planted-signature-5")
	img.Spec.ExtraHeaders = []string{"X-Tenant: planted-header-6"}
	createUntilEnd(t, img)

	p := newPlugin(t, env.ControlPlane.Config())
	file := filepath.Join(t.TempDir(), "support.tar.gz")
	result, err := p.Run(t.Context(), nil, "support-bundle", "--cluster", "frankfurt", "--output-file", file, "-o", "json")
	require.NoError(t, err)
	require.Equal(t, 1, result.Code, "there is no hub, which is listed: %s%s", result.Out, result.Err)
	var summary struct {
		Archive  string
		Redacted int
		Files    []struct{ Path string }
		Unread   []struct{ What, Why string }
	}
	require.NoError(t, json.Unmarshal([]byte(result.Out), &summary))
	assert.Equal(t, file, summary.Archive)
	assert.Positive(t, summary.Redacted)
	assert.NotEmpty(t, summary.Unread)
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	files := readArchive(t, file)
	for name, text := range files {
		assert.NotContains(t, text, "planted-", name)
		assert.NotContains(t, text, "s3cr3t", name)
		assert.NotContains(t, text, "kind: Secret\n", name)
	}
	assert.Contains(t, files["support/members/frankfurt/vmdiskimages.yaml"], "name: ubuntu")
	assert.Contains(t, files["support/members/frankfurt/vmdiskimages.yaml"], "phase: Succeeded")
	assert.Contains(t, files["support/members/frankfurt/virtualmachines.yaml"], "name: anna")
	assert.Contains(t, files["support/members/frankfurt/doctor.json"], "snapshot-class-driver")
	assert.Contains(t, files["support/MANIFEST.txt"], "members/frankfurt/virtualmachines.yaml")
}

// One context is of one member: the objects of two would be the same.
func TestSupportBundleOfTwoNeedsTwoContexts(t *testing.T) {
	p := newPlugin(t, env.ControlPlane.Config())
	result, err := p.Run(t.Context(), nil, "support-bundle", "--member-context", "frankfurt", "--cluster", "bergen,kiel", "--list")
	require.NoError(t, err)
	assert.Equal(t, 2, result.Code)
	assert.Contains(t, result.Err, "--member-context is of one cluster")
}

// The commands of docs/operate/troubleshooting.md end as their exit codes say.
func TestCommandsOfThePage(t *testing.T) {
	namespace := createFarm(t)
	require.NotEmpty(t, namespace)
	p := newPlugin(t, env.ControlPlane.Config())
	dir, found := t.TempDir(), 0
	for _, command := range pages.Read(t, "docs/operate/troubleshooting.md").Commands() {
		arguments, _ := strings.CutPrefix(command, "kubectl ot ")
		isBundle, isDoctor := strings.HasPrefix(arguments, "support-bundle "), strings.HasPrefix(arguments, "doctor ")
		if !isBundle && !isDoctor || strings.HasPrefix(arguments, "doctor --cluster") { // of a hub: e2e/suites/cli
			continue
		}
		found++
		args := strings.Fields(arguments)
		for i := range args {
			if args[i] == "support.tar.gz" {
				args[i] = filepath.Join(dir, args[i])
			}
		}
		result, err := p.Run(context.WithoutCancel(t.Context()), nil, args...)
		require.NoError(t, err)
		assert.LessOrEqual(t, result.Code, 1, "%s: %s%s", command, result.Out, result.Err)
		assert.NotEmpty(t, result.Out, command)
	}
	assert.Equal(t, 3, found)
}
