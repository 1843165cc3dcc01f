package v1alpha1

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var (
	headerPattern   = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_.-]*): ?([!-~](?:[ -~]*[!-~])?)$`)
	transferPattern = regexp.MustCompile(`(?i)^(connection|content-length|expect|host|keep-alive|proxy-connection|range|te|trailer|transfer-encoding|upgrade)$`)
	// metadataHeader matches headers without which metadata services of clouds refuse to give
	// the credentials of a node. They would be sent after a redirect, too.
	metadataHeader = regexp.MustCompile(`(?i)^(([a-z0-9_.-]*[_.-])?metadata([_.-][a-z0-9_.-]*)?:|authorization: ?bearer +oracle$)`)
	// refusedHeader matches how Go's HTTP client quotes a header that it does not send.
	refusedHeader = regexp.MustCompile(`(invalid header field (?:name|value)(?: for)?) "(?:[^"\\]|\\.)*"?`)
)

// ParseHeader returns name and value of a header such as "X-Tenant: blue"; ok is false where
// it cannot be sent with a transfer, or asks a metadata service. The CRD checks extraHeaders by the same rules, those
// of the list: the API server quotes an item that it refuses.
func ParseHeader(header string) (name, value string, ok bool) {
	part := headerPattern.FindStringSubmatch(header)
	if part == nil || transferPattern.MatchString(part[1]) || metadataHeader.MatchString(header) {
		return "", "", false
	}
	return part[1], part[2], true
}

// Bounds of a Secret of secretExtraHeaders, beyond what servers take. The agent reads and sends it.
const (
	maxSecretHeaders      = 16
	maxSecretHeaderBytes  = 8 << 10 // of one value
	maxSecretHeadersBytes = 16 << 10
)

// FindHeaderProblem says what keeps the values of a Secret from being sent as headers; empty
// for nothing. key is the one that is wrong, if it is one. It quotes no value.
func FindHeaderProblem(data map[string][]byte) (key, problem string) {
	switch {
	case len(data) == 0:
		return "", "is empty"
	case len(data) > maxSecretHeaders:
		return "", fmt.Sprintf("has more than %d keys", maxSecretHeaders)
	}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if total += len(data[key]); len(data[key]) > maxSecretHeaderBytes {
			return key, fmt.Sprintf("has more than %d bytes", maxSecretHeaderBytes)
		}
	}
	if total > maxSecretHeadersBytes {
		return "", fmt.Sprintf("has more than %d bytes of headers", maxSecretHeadersBytes)
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if _, _, ok := ParseHeader(string(data[key])); !ok {
			return key, "is no HTTP header that can be sent with a transfer, or is one for metadata services of clouds"
		}
	}
	return "", ""
}

// minSecretBytes is the length from which a part of a header's value is taken for a secret:
// shorter ones are words of many texts.
const minSecretBytes = 4

// RedactHeaders redacts the values of extraHeaders in a text about an image: importers and
// admission webhooks may quote them, and reports are read by more people than specs. A value
// that the text's end or an ellipsis cuts off is redacted, too.
func (s *VMDiskImageSpec) RedactHeaders(text string) string {
	for range 4 { // what is redacted may complete another value
		next := s.redactHeadersOnce(text)
		if next == text {
			break
		}
		text = next
	}
	return text
}

func (s *VMDiskImageSpec) redactHeadersOnce(text string) string {
	if len(s.SecretExtraHeaders) > 0 {
		text = refusedHeader.ReplaceAllString(text, `$1 "`+ellipsis+`"`)
	}
	var secrets []string
	for _, header := range s.ExtraHeaders {
		_, value, _ := strings.Cut(header, ":")
		value = strings.TrimSpace(value)
		secrets = append(secrets, value)
		// A scheme and its credentials, as in "Bearer …".
		if words := strings.Fields(value); len(words) > 1 {
			secrets = append(secrets, words...)
		}
	}
	// Of two values, one may begin with the other.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	for _, secret := range secrets {
		if len(secret) < minSecretBytes || !strings.Contains(text, secret[:minSecretBytes]) && !strings.HasPrefix(text, secret[len(secret)-minSecretBytes:]) {
			continue
		}
		text = strings.ReplaceAll(text, secret, ellipsis)
		for n := len(secret) - 1; n >= minSecretBytes; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				text = text[:len(text)-n] + ellipsis
			}
			text = strings.ReplaceAll(text, secret[:n]+ellipsis, ellipsis)
		}
	}
	return text
}

// RedactError redacts the values of extraHeaders in the API server's answer to a request with
// the image's spec or its DataVolume.
func (s *VMDiskImageSpec) RedactError(err error) error {
	var answer *apierrors.StatusError
	if len(s.ExtraHeaders) == 0 || !errors.As(err, &answer) {
		return err
	}
	redacted := &apierrors.StatusError{ErrStatus: *answer.ErrStatus.DeepCopy()}
	redacted.ErrStatus.Message = s.RedactHeaders(redacted.ErrStatus.Message)
	if details := redacted.ErrStatus.Details; details != nil {
		for i := range details.Causes {
			details.Causes[i].Message = s.RedactHeaders(details.Causes[i].Message)
		}
	}
	return redacted
}
