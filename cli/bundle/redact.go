// Package bundle makes what a support bundle may hold: objects, logs and pages without
// secrets, in an archive that is the same for the same content. It is pure.
//
// Redaction goes by what is known to be harmless. A field that nobody has listed is redacted,
// whatever it holds: a new field of a kind is private until somebody says otherwise.
package bundle

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Redactor redacts, and remembers what it has redacted: a password that a message quotes is
// redacted there, too. Learn has to see all objects before the first is redacted.
type Redactor struct {
	// private are values that are redacted, and words of them; kept are names that stay.
	private, kept map[string]bool
	// key of the hashes: without it nobody can try words against them.
	key []byte
	// quoted replaces private values in texts; nil until it is needed.
	quoted *strings.Replacer
	count  int
}

// NewRedactor returns a Redactor that has seen nothing. key is random, and of one bundle: equal
// values have equal hashes in it, and no others in the next.
func NewRedactor(key []byte) *Redactor {
	return &Redactor{private: map[string]bool{}, kept: map[string]bool{}, key: key}
}

// Count is how many values it has redacted.
func (r *Redactor) Count() int { return r.count }

// Learn remembers what is private in an object.
func (r *Redactor) Learn(object map[string]any) {
	count := r.count
	r.Object(object)
	r.count, r.quoted = count, nil
}

const (
	// minPrivateBytes is how long a private value is that is looked for in texts, and
	// minWordBytes a word of one: shorter ones are everywhere.
	minPrivateBytes = 4
	minWordBytes    = 8
	maxPrivate      = 20000
	maxTextBytes    = 4096
	hashBytes       = 4
)

const markerPrefix = "<redacted sha256:"

// marker replaces a value. Equal values have equal markers.
func (r *Redactor) marker(value string) string {
	mac := hmac.New(sha256.New, r.key)
	_, _ = mac.Write([]byte(value)) // it never fails
	return markerPrefix + hex.EncodeToString(mac.Sum(nil)[:hashBytes]) + ">"
}

// hide redacts a value and remembers it.
func (r *Redactor) hide(value string) string {
	if value == "" {
		return ""
	}
	r.count++
	r.remember(value, minPrivateBytes)
	return r.marker(value)
}

// hideWords remembers the words of a value, too: a message may quote one of a document.
func (r *Redactor) hideWords(value string) string {
	for _, word := range strings.FieldsFunc(value, func(c rune) bool { return unicode.IsSpace(c) || strings.ContainsRune(`"',;{}[]()=`, c) }) {
		r.remember(strings.TrimSuffix(word, ":"), minWordBytes)
	}
	return r.hide(value)
}

func (r *Redactor) remember(part string, atLeast int) {
	if len(part) >= atLeast && len(r.private) < maxPrivate {
		r.private[part] = true
	}
}

// keepName remembers that a value stays, as a name does.
func (r *Redactor) keepName(value string) string {
	r.kept[value] = true
	return value
}

// Text returns a text of a program: URLs are cut before their query, and what is redacted
// elsewhere is redacted.
func (r *Redactor) Text(text string) string {
	text = r.quotedValues().Replace(text)
	cut := v1alpha1.SanitizeText(text, maxTextBytes)
	cut = credentialPattern.ReplaceAllStringFunc(cut, func(found string) string {
		parts := credentialPattern.FindStringSubmatch(found)
		return parts[1] + r.marker(parts[2])
	})
	r.count += strings.Count(cut, markerPrefix)
	return cut
}

// Line redacts a line of a log or of a document of a program; its indentation stays.
func (r *Redactor) Line(line string) string {
	text := strings.TrimLeft(line, " ")
	return line[:len(line)-len(text)] + r.Text(text)
}

// quotedValues replaces private values, the longest first.
func (r *Redactor) quotedValues() *strings.Replacer {
	if r.quoted != nil {
		return r.quoted
	}
	var parts []string
	for part := range r.private {
		if !r.kept[part] {
			parts = append(parts, part)
		}
	}
	slices.SortFunc(parts, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(parts))
	for _, part := range parts {
		pairs = append(pairs, part, r.marker(part))
	}
	r.quoted = strings.NewReplacer(pairs...)
	return r.quoted
}

// credentialPattern finds what names itself a credential.
var credentialPattern = regexp.MustCompile(`(?i)((?:authorization|password|passwd|token|secret[-_]?key|api[-_]?key)["']?\s*[:=]\s*["']?(?:(?:bearer|basic)\s+)?|bearer\s+)([^\s"',;<]{4,})`)

// Object returns an object without what is not known to be harmless.
func (r *Redactor) Object(object map[string]any) map[string]any {
	redacted, _ := r.value(nil, object).(map[string]any)
	return redacted
}

func (r *Redactor) value(path []string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		return r.fields(path, v)
	case []any:
		items := make([]any, len(v))
		for i := range v {
			items[i] = r.value(path, v[i])
		}
		return items
	case string:
		return r.leaf(path, v)
	default: // numbers, booleans and nothing; whole unknown subtrees do not come here
		return value
	}
}

func (r *Redactor) fields(path []string, fields map[string]any) any {
	redacted := make(map[string]any, len(fields))
	for _, key := range sortedKeys(fields) {
		value := fields[key]
		inner := append(slices.Clone(path), key)
		class := classOf(inner, holdsFields(value))
		if key == "policy" && isFlat(value) {
			class = classMap
		}
		switch {
		case key == "managedFields":
		case class == classMap:
			redacted[key] = r.mapOf(inner, value)
		case class != classPrivate:
			redacted[key] = r.value(inner, value)
		case isHarmlessScalar(value) && isPlain(key, fieldPattern):
			redacted[key] = value
		default:
			hidden := r.hideAll(value)
			if !isPlain(key, fieldPattern) { // of a field that keeps what its schema does not know
				key = r.hideWords(key)
			}
			redacted[key] = hidden
		}
	}
	return redacted
}

// mapOf redacts a map with keys of anybody: the policy has keys of ours, labels may have.
func (r *Redactor) mapOf(path []string, value any) any {
	entries, ok := value.(map[string]any)
	if !ok {
		return r.hideAll(value)
	}
	redacted := make(map[string]any, len(entries))
	for _, key := range sortedKeys(entries) {
		text, isText := entries[key].(string)
		if isText && isKnownKey(path[len(path)-1], key) && isPlain(text, valuePattern) {
			redacted[key] = text
			continue
		}
		shown := key
		if !isPlain(key, keyPattern) {
			shown = r.hide(key)
		}
		if isText {
			redacted[shown] = r.hide(text)
			continue
		}
		redacted[shown] = r.hideAll(entries[key])
	}
	return redacted
}

// hideAll replaces a value of any shape by one marker.
func (r *Redactor) hideAll(value any) any {
	if text, ok := value.(string); ok {
		return r.hideWords(text)
	}
	r.rememberAll(value)
	r.count++
	text, err := json.Marshal(value)
	if err != nil {
		return "<redacted>"
	}
	return r.marker(string(text))
}

// rememberAll remembers the texts in an unknown subtree.
func (r *Redactor) rememberAll(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			r.rememberAll(v[key])
		}
	case []any:
		for _, item := range v {
			r.rememberAll(item)
		}
	case string:
		count := r.count
		r.hideWords(v)
		r.count = count
	}
}

func (r *Redactor) leaf(path []string, text string) string {
	switch classOf(path, false) {
	case classText:
		return r.Text(text)
	case classURL:
		if cut := v1alpha1.RedactURL(text); isPlain(cut, urlPattern) {
			return r.keepName(cut)
		}
	case classSource:
		if cut := v1alpha1.RedactSource(text); isPlain(cut, sourcePattern) {
			return cut
		}
	case classPlain:
		if isPlain(text, identifierPattern) || isTime(text) || isQuantity(text) {
			return r.keepName(text)
		}
	}
	return r.hideWords(text)
}

// Patterns of what may stay. A sentence, a key or a certificate is none of these.
var (
	identifierPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:/%+-]{0,251}[A-Za-z0-9%])?$`)
	valuePattern      = regexp.MustCompile(`^[A-Za-z0-9._,/ %-]{0,63}$`)
	fieldPattern      = regexp.MustCompile(`^[a-z][A-Za-z0-9_]{0,62}$`)
	keyPattern        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}$`)
	urlPattern        = regexp.MustCompile(`^[a-z0-9-]+://[\x21-\x7e]*…?$`)
	sourcePattern     = regexp.MustCompile(`^[a-z0-9]+( [a-z0-9-]+://[\x21-\x7e]*…?( [0-9a-f]{12})?)?( [a-z0-9]+:[0-9a-fA-F]+)?$`)
)

func isPlain(text string, pattern *regexp.Regexp) bool { return pattern.MatchString(text) }

func isTime(text string) bool {
	_, err := time.Parse(time.RFC3339Nano, text)
	return err == nil
}

func isQuantity(text string) bool {
	_, err := resource.ParseQuantity(text)
	return err == nil
}

// holdsFields reports whether a value is an object or a list of objects.
func holdsFields(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return true
	case []any:
		return slices.ContainsFunc(v, holdsFields)
	}
	return false
}

// isHarmlessScalar: numbers and booleans of a kind's own schema tell nothing private. Those of
// unknown subtrees are never reached.
func isHarmlessScalar(value any) bool {
	switch value.(type) {
	case nil, bool, int, int32, int64, float64, json.Number:
		return true
	}
	return false
}

// isFlat tells a policy, which is a map of texts, from an object about one.
func isFlat(value any) bool {
	entries, ok := value.(map[string]any)
	if !ok || entries["data"] != nil {
		return false
	}
	for _, entry := range entries {
		if _, isText := entry.(string); !isText {
			return false
		}
	}
	return entries["source"] == nil
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
