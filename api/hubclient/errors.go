package hubclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// FailureKind is why a request to an API server failed.
type FailureKind uint8

const (
	// NetworkFailure means: nothing answers.
	NetworkFailure FailureKind = iota
	// CertificateFailure means: the server's certificate is not trusted.
	CertificateFailure
	// UnauthorizedFailure means: the server refuses the credential.
	UnauthorizedFailure
	// ForbiddenFailure means: the credential is valid but lacks a permission.
	ForbiddenFailure
	// ServerFailure means: the server answers with another error.
	ServerFailure
	// LimitFailure means: an answer exceeds the limits of package transport.
	LimitFailure
)

// Bounds of texts from outside in a message.
const (
	maxHostBytes   = 253
	maxQuotedBytes = 256
)

// ClassifyError returns the kind of an error and a message. The message is always the
// same for the same cause, without times or local ports, because it goes into
// conditions that are written when they change.
func ClassifyError(err error) (FailureKind, string) {
	if why := certificateMessage(err); why != "" {
		return CertificateFailure, why
	}
	var status apierrors.APIStatus
	var limit *transport.LimitError
	var watching *WatchError
	switch {
	case errors.As(err, &watching) && !errors.As(err, &limit):
		kind, why := ClassifyError(watching.err)
		return kind, "its lists and watches fail: " + why
	case errors.As(err, &limit):
		return LimitFailure, "its API server is cut off: " + limit.Error()
	case apierrors.IsUnauthorized(err):
		return UnauthorizedFailure, "its API server refuses the credential, which has expired or was revoked"
	case apierrors.IsForbidden(err):
		return ForbiddenFailure, "the credential lacks a permission: " + forbiddenMessage(err)
	case errors.As(err, &status):
		return ServerFailure, fmt.Sprintf("its API server answers with code %d %s", status.Status().Code, v1alpha1.SanitizeText(string(status.Status().Reason), 64))
	}
	return NetworkFailure, networkMessage(err)
}

func certificateMessage(err error) string {
	var (
		invalid  x509.CertificateInvalidError
		hostname x509.HostnameError
		unknown  x509.UnknownAuthorityError
		roots    x509.SystemRootsError
		verify   *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, &unknown):
		return "the certificate of its API server is signed by an authority that is not in the kubeconfig"
	case errors.As(err, &hostname):
		return fmt.Sprintf("the certificate of its API server is not for %s", v1alpha1.SanitizeText(hostname.Host, maxHostBytes))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate of its API server has expired or is not valid yet"
	case errors.As(err, &invalid), errors.As(err, &roots), errors.As(err, &verify):
		return "the certificate of its API server cannot be verified"
	}
	return ""
}

func forbiddenMessage(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Message != "" {
		return v1alpha1.SanitizeText(status.Status().Message, maxQuotedBytes)
	}
	return "it may not read the mailbox"
}

func networkMessage(err error) string {
	var (
		timeout interface{ Timeout() bool }
		dns     *net.DNSError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection is refused"
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("the host name %s does not resolve", v1alpha1.SanitizeText(dns.Name, maxHostBytes))
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer in time"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "there is no route to it"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
		return "the connection breaks"
	case strings.Contains(err.Error(), "stream error: "), strings.Contains(err.Error(), "connection error: "), strings.Contains(err.Error(), "http2: "):
		return "the connection breaks" // HTTP/2; the text has the number of the stream
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return "the server does not speak TLS"
	case isUnusableAnswer(err):
		return "its API server's answer is of no use: " + innermostError(err)
	}
	return "it cannot be reached: " + innermostError(err)
}

// unusableAnswers are parts of the errors of decoders, which have no types.
var unusableAnswers = []string{"couldn't get version/kind", "unable to decode", "cannot unmarshal", "invalid character", "unexpected end of JSON", "no kind ", "illegal base64", "parsing time", "malformed HTTP", "serializer for ", "0-length response"}

// isUnusableAnswer reports whether a server answers with something else than an API
// server.
func isUnusableAnswer(err error) bool {
	if errors.Is(err, errAnotherObject) || errors.As(err, new(mailbox.ReportError)) || errors.Is(err, errShortWatch) {
		return true
	}
	text := err.Error()
	return slices.ContainsFunc(unusableAnswers, func(part string) bool { return strings.Contains(text, part) })
}

// innermostError returns the text of the innermost error; outer errors contain local
// ports.
func innermostError(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			break
		}
		err = next
	}
	return v1alpha1.SanitizeText(err.Error(), maxQuotedBytes)
}

// IsObjectNotFound reports whether an object does not exist on an API server that
// serves its kind.
func IsObjectNotFound(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
