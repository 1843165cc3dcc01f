package v1alpha1

import (
	"regexp"
	"strings"
)

var (
	wordPattern      = regexp.MustCompile(`\S+`)
	authorityPattern = regexp.MustCompile(`://[^/]*`)
	hostPattern      = regexp.MustCompile(`^(\[[^\]]*\]|[^:]*)(:[0-9]*)?$`)
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

// RedactURLs redacts the URLs in a text, those without a host included. A URL ends at white
// space only, since a query may hold quotes and brackets.
func RedactURLs(text string) string {
	return wordPattern.ReplaceAllStringFunc(text, func(word string) string {
		url := strings.TrimRight(word, "\"'`)]}>,.;:!\\")
		path, query, found := strings.Cut(url, "?")
		if strings.Contains(url, "://") || (found && (strings.Contains(path, "/") || strings.Contains(query, "="))) {
			return RedactURL(url) + word[len(url):]
		}
		return word
	})
}
