package dashboard

import (
	"bytes"
	"compress/flate"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// cookiePrefix and a number name a cookie. __Host-: of this host alone, by HTTPS alone, and
	// settable by no other host of the domain.
	cookiePrefix = "__Host-ot-fleet-"
	// maxCookies hold one token: those with many groups are longer than the 4 KiB of one cookie.
	maxCookies = 4
	// maxCookieValue leaves room for name and attributes within 4 KiB.
	maxCookieValue = 3800
	// maxTokenBytes bounds a token. Compressed, it fits into maxCookies.
	maxTokenBytes = 12 << 10
	// maxSignIn ends a cookie whose token lives on.
	maxSignIn = 8 * time.Hour
	// keyBytes is the size of a key of AES-256.
	keyBytes = 32
	// cookiePurpose is authenticated with each cookie.
	cookiePurpose = "ot-fleet dashboard: token, version 1"
)

var (
	errNoCookie     = errors.New("there is no cookie")
	errUnreadable   = errors.New("the cookie cannot be read with the keys in force")
	errCookieEnded  = errors.New("the cookie has ended")
	errTokenTooLong = fmt.Errorf("the token is longer than %d KiB: ask for one with fewer groups", maxTokenBytes>>10)
)

// keys seal cookies with the current one, and open what it or the previous one sealed.
type keys struct {
	current, previous []byte
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// sealToken returns the cookies that hold a token until a time, and those that remove what a longer
// token left.
func (k keys) sealToken(token string, now, end time.Time) ([]*http.Cookie, error) {
	if len(token) > maxTokenBytes {
		return nil, errTokenTooLong
	}
	var plain bytes.Buffer
	plain.Write(binary.BigEndian.AppendUint64(nil, uint64(end.Unix())))
	// Base64 of a JWT costs a third, which compression takes back.
	w, err := flate.NewWriter(&plain, flate.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, token); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	aead, err := newAEAD(k.current)
	if err != nil {
		return nil, err
	}
	sealed := base64.RawURLEncoding.EncodeToString(aead.Seal(nil, nil, plain.Bytes(), []byte(cookiePurpose)))
	count := (len(sealed) + maxCookieValue - 1) / maxCookieValue
	if count > maxCookies {
		return nil, errTokenTooLong
	}
	cookies := clearCookies()
	for i := range count {
		value := sealed[i*maxCookieValue : min((i+1)*maxCookieValue, len(sealed))]
		if i == 0 {
			value = strconv.Itoa(count) + "." + value
		}
		cookies[i].Value, cookies[i].MaxAge = value, max(1, int(end.Sub(now)/time.Second))
	}
	return cookies, nil
}

// clearCookies returns cookies that remove those of a token.
func clearCookies() []*http.Cookie {
	cookies := make([]*http.Cookie, maxCookies)
	for i := range cookies {
		cookies[i] = &http.Cookie{
			Name: cookiePrefix + strconv.Itoa(i), Path: "/", MaxAge: -1,
			Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		}
	}
	return cookies
}

// openToken returns the token in the cookies of a request, and until when they hold it.
func (k keys) openToken(request *http.Request, now time.Time) (token string, end time.Time, err error) {
	first, err := readCookie(request, 0)
	if err != nil {
		return "", end, err
	}
	text, value, _ := strings.Cut(first, ".")
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 || count > maxCookies {
		return "", end, errUnreadable
	}
	for i := 1; i < count; i++ {
		more, err := readCookie(request, i)
		if err != nil {
			return "", end, errUnreadable
		}
		value += more
	}
	sealed, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		return "", end, errUnreadable
	}
	plain, err := k.openSealed(sealed)
	if err != nil || len(plain) < 8 {
		return "", end, errUnreadable
	}
	end = time.Unix(int64(binary.BigEndian.Uint64(plain)), 0)
	if !now.Before(end) {
		return "", end, errCookieEnded
	}
	bytes, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(plain[8:])), maxTokenBytes+1))
	if err != nil || len(bytes) > maxTokenBytes {
		return "", end, errUnreadable
	}
	return string(bytes), end, nil
}

// readCookie returns a cookie's value. A second one of that name is not ours.
func readCookie(request *http.Request, i int) (string, error) {
	found := request.CookiesNamed(cookiePrefix + strconv.Itoa(i))
	switch {
	case len(found) == 0:
		return "", errNoCookie
	case len(found) > 1 || len(found[0].Value) > maxCookieValue+len("4."):
		return "", errUnreadable
	}
	return found[0].Value, nil
}

func (k keys) openSealed(sealed []byte) ([]byte, error) {
	for _, key := range [][]byte{k.current, k.previous} {
		if len(key) != keyBytes {
			continue
		}
		aead, err := newAEAD(key)
		if err != nil {
			return nil, err
		}
		if plain, err := aead.Open(nil, nil, sealed, []byte(cookiePurpose)); err == nil {
			return plain, nil
		}
	}
	return nil, errUnreadable
}
