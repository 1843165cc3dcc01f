package memberclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// requestError returns the error of a real request to a server.
func requestError(t *testing.T, c *http.Client, url string) error {
	t.Helper()
	response, err := c.Get(url)
	if err == nil {
		_ = response.Body.Close()
	}
	require.Error(t, err)
	return err
}

func TestClassifyError(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	breaking := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = connection.Close()
		}
	}))
	defer breaking.Close()
	quick := &http.Client{Timeout: 50 * time.Millisecond}
	wrongName := secure.Client()
	wrongName.Transport.(*http.Transport).TLSClientConfig.ServerName = "elsewhere"
	reports := schema.GroupResource{Group: "pelotech.ot", Resource: "clusterreports"}

	for name, tt := range map[string]struct {
		err         error
		wantReason  string
		wantMessage string
	}{
		"unknown authority":   {requestError(t, &http.Client{}, secure.URL), v1alpha1.ReasonCertificateNotTrusted, "an authority that is not in the kubeconfig"},
		"another host's":      {requestError(t, wrongName, secure.URL), v1alpha1.ReasonCertificateNotTrusted, "not for elsewhere"},
		"no TLS":              {requestError(t, &http.Client{}, strings.Replace(plain.URL, "http:", "https:", 1)), v1alpha1.ReasonUnreachable, "TLS"},
		"refused":             {requestError(t, &http.Client{}, "http://127.0.0.1:1"), v1alpha1.ReasonUnreachable, "the connection is refused"},
		"hangs":               {requestError(t, quick, "http://"+silent.Addr().String()), v1alpha1.ReasonUnreachable, "does not answer in time"},
		"breaks":              {requestError(t, &http.Client{}, breaking.URL), v1alpha1.ReasonUnreachable, "the connection breaks"},
		"no such name":        {&net.DNSError{Name: "member.invalid", IsNotFound: true}, v1alpha1.ReasonUnreachable, "the host name member.invalid does not resolve"},
		"deadline":            {fmt.Errorf("reading: %w", context.DeadlineExceeded), v1alpha1.ReasonUnreachable, "does not answer in time"},
		"unauthorized":        {apierrors.NewUnauthorized("no"), v1alpha1.ReasonUnauthorized, "expired or was revoked"},
		"forbidden":           {apierrors.NewForbidden(reports, "default", errors.New("no rights")), v1alpha1.ReasonUnauthorized, "no rights"},
		"unavailable":         {apierrors.NewServiceUnavailable("etcd is gone"), v1alpha1.ReasonUnreachable, "code 503 ServiceUnavailable"},
		"wrapped":             {fmt.Errorf("engaging it: %w", apierrors.NewUnauthorized("no")), v1alpha1.ReasonUnauthorized, "expired"},
		"something else":      {fmt.Errorf("outer: %w", errors.New("inner")), v1alpha1.ReasonUnreachable, "it cannot be reached: inner:"},
		"cut off in the body": {io.ErrUnexpectedEOF, v1alpha1.ReasonUnreachable, "the connection breaks"},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message := ClassifyError(tt.err)
			require.Equal(t, tt.wantReason, reason, "%v", tt.err)
			require.Contains(t, message, tt.wantMessage)
		})
	}
}
