package cloudinit_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestCombineUserData(t *testing.T) {
	cfg := mustRender(t, apitest.VirtualMachine("ns", "vm").WithUserData("#cloud-config\npackages: [vim]\n").Obj())
	// Checked by hand with cloud-init 22.4.2 of Debian 12: the merged configuration has the
	// author's scalars and both lists.
	assert.Equal(t, `MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="ot-fleet-9723d45cab5f47430570fcbad1f8ec84"

--ot-fleet-9723d45cab5f47430570fcbad1f8ec84
Content-Type: text/plain; charset="utf-8"
Content-Transfer-Encoding: base64

I2Nsb3VkLWNvbmZpZwpwYWNrYWdlczogW3ZpbV0K

--ot-fleet-9723d45cab5f47430570fcbad1f8ec84
Content-Type: text/cloud-config; charset="utf-8"
Merge-Type: list(prepend)+dict(no_replace,recurse_list)+str()
Content-Transfer-Encoding: base64

I2Nsb3VkLWNvbmZpZwpob3N0bmFtZTogdm0K

--ot-fleet-9723d45cab5f47430570fcbad1f8ec84--
`, string(cfg.UserData))
}

type archivePart struct {
	header mail.Header
	body   string
}

// readArchiveParts returns the parts of an archive, including those of nested archives.
func readArchiveParts(t require.TestingT, text []byte) (all []archivePart) {
	msg, err := mail.ReadMessage(bytes.NewReader(text))
	require.NoError(t, err)
	kind, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	require.NoError(t, err)
	require.Equal(t, "multipart/mixed", kind)
	r := multipart.NewReader(msg.Body, params["boundary"])
	for {
		p, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		body, err := io.ReadAll(p)
		require.NoError(t, err)
		switch {
		case p.Header.Get("Content-Transfer-Encoding") == "base64":
			body, err = io.ReadAll(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(body)))
			require.NoError(t, err)
		case strings.HasPrefix(p.Header.Get("Content-Type"), "multipart/"):
			all = append(all, readArchiveParts(t, append([]byte("Content-Type: "+p.Header.Get("Content-Type")+"\n\n"), body...))...)
			continue
		}
		all = append(all, archivePart{mail.Header(p.Header), string(body)})
	}
}

func TestUserDataFormats(t *testing.T) {
	const agentPart = "#cloud-config\nhostname: vm\n"
	script := "#!/bin/sh\necho " + strings.Repeat("größer ", 50) + "\n"
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, err := w.Write([]byte(script))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	archive := "Content-Type: multipart/mixed; boundary=\"inner\"\nMIME-Version: 1.0\n\n--inner\nContent-Type: text/x-shellscript\n\n#!/bin/sh\n--inner\nContent-Type: text/cloud-config\n\npackages: [vim]\n--inner--\n"

	for name, tt := range map[string]struct {
		data string
		want []string
		err  string
	}{
		"empty":                {data: ""},
		"script":               {data: script, want: []string{script, agentPart}},
		"compressed":           {data: compressed.String(), want: []string{script, agentPart}},
		"archive":              {data: archive, want: []string{"#!/bin/sh", "packages: [vim]", agentPart}},
		"binary":               {data: "\x7fELF\x00\xff", want: []string{"\x7fELF\x00\xff", agentPart}},
		"archive not in UTF-8": {data: "MIME-Version: 1.0\n\n\xff", err: "cloudInit: the MIME archive is not UTF-8, so cloud-init cannot read it"},
		"invalid gzip":         {data: "\x1f\x8bno", err: "cloudInit: the user data begins like gzip and is not valid gzip: unexpected EOF"},
		"truncated gzip":       {data: compressed.String()[:compressed.Len()-9], err: "cloudInit: decompressing the user data: unexpected EOF"},
		"boundary in the data": {data: "--ot-fleet-\n--ot-fleet---\n", want: []string{"--ot-fleet-\n--ot-fleet---\n", agentPart}},
	} {
		t.Run(name, func(t *testing.T) {
			vm := apitest.VirtualMachine("ns", "vm").Obj()
			vm.Spec.CloudInit = &v1alpha1.CloudInit{UserDataSecretRef: &v1alpha1.SecretKey{Name: "s", Key: "k"}}
			cfg, err := cloudinit.Render(vm, cloudinit.Inputs{UserData: []byte(tt.data)})
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			if tt.want == nil {
				assert.Equal(t, agentPart, string(cfg.UserData))
				return
			}
			var bodies []string
			for _, p := range readArchiveParts(t, cfg.UserData) {
				bodies = append(bodies, p.body)
			}
			assert.Equal(t, tt.want, bodies)
		})
	}
}
