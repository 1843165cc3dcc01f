package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

var (
	// wordPattern matches words, and quoted URLs to their closing quote.
	wordPattern      = regexp.MustCompile(`(?s)\S*?"[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^"\\]|\\.)*(?:"\S*|\\?$)|\S+`)
	authorityPattern = regexp.MustCompile(`://[^/]*`)
	// hostPattern matches a host with a port, also a truncated one.
	hostPattern = regexp.MustCompile(`^(\[[0-9a-fA-F:.%]*\]?|[^:]*)(:[0-9]*)?…?$`)
)

// RedactURL returns a URL without what can be a secret: user name, password, query and
// fragment. Signed URLs carry their signature in the query.
func RedactURL(url string) string {
	secret := ""
	if i := strings.IndexAny(url, "?#"); i >= 0 {
		url, secret = url[:i], url[i:i+1]+ellipsis
	}
	return authorityPattern.ReplaceAllStringFunc(url, redactAuthority) + secret
}

// redactAuthority keeps a host with a port, and nothing else: text after a colon that is no
// port is part of a password with a slash.
func redactAuthority(authority string) string {
	host := strings.TrimPrefix(authority, "://")
	host = host[strings.LastIndex(host, "@")+1:]
	if !hostPattern.MatchString(host) {
		host = ellipsis
	}
	return "://" + host
}

// sourcePattern matches how reports describe a source: its type, a URL that may hold spaces, a
// fingerprint of a redacted URL, and a checksum.
var sourcePattern = regexp.MustCompile(`(?s)^([a-z0-9]+ )(.*?)( [0-9a-f]{12})?( (?:md5|sha1|sha256|sha512):[0-9a-fA-F]+)?$`)

// RedactSource redacts how a report describes a source. A fingerprint in place of what is
// redacted keeps sources apart that differ in nothing else.
func RedactSource(source string) string {
	part := sourcePattern.FindStringSubmatch(source)
	if part == nil {
		return RedactURLs(source)
	}
	url, fingerprint := part[2], part[3]
	redacted := RedactURL(url)
	if fingerprint != "" && redacted == url {
		return source
	}
	if url += fingerprint; redacted == url {
		return source
	}
	sum := sha256.Sum256([]byte(url))
	return part[1] + RedactURL(url) + " " + hex.EncodeToString(sum[:6]) + part[4]
}

// SourceHasURL reports whether a source, as RedactSource returns it, is downloaded from a URL,
// which may be redacted.
func SourceHasURL(source, url string) bool {
	part := sourcePattern.FindStringSubmatch(source)
	return part != nil && (part[2] == url || RedactSource(part[1]+url) == part[1]+part[2]+part[3])
}

// RedactURLs redacts the URLs in a text, those without a host included. A URL ends at white
// space or, in quotes, at the closing quote, since a query may hold anything else.
func RedactURLs(text string) string {
	if !strings.Contains(text, "://") && !strings.Contains(text, "?") {
		return text
	}
	return wordPattern.ReplaceAllStringFunc(text, func(word string) string {
		url := strings.TrimRight(word, "\"'`)]}>,.;:!\\")
		path, query, found := strings.Cut(url, "?")
		if strings.Contains(url, "://") || (found && (strings.Contains(path, "/") || strings.Contains(query, "="))) {
			redacted := RedactURL(url) + word[len(url):]
			if strings.Count(word, `"`) > 1 && strings.Count(redacted, `"`) == 1 {
				redacted += `"` // the rest of the text is not part of the URL
			}
			return redacted
		}
		return word
	})
}

// RedactedSource describes the source of an image as reports do.
func (s *VMDiskImageSpec) RedactedSource() string {
	text := string(s.SourceType)
	for _, part := range []string{s.URL, s.Checksum} {
		if part != "" {
			text += " " + part
		}
	}
	return RedactSource(text)
}
