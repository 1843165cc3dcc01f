package transport

import "io"

// meter computes the cost of a stream of JSON values while it passes. It never
// underestimates what a decoder allocates for a valid value: outside of strings, each
// value of an array or object follows a comma or a bracket.
type meter struct {
	// cost of the current value at the top level, and bytes around it.
	cost              int64
	depth             int
	inString, escaped bool
}

// add meters the first bytes of p, up to the end of a value at the top level, and
// returns how many that are and whether the value has ended.
func (m *meter) add(p []byte) (n int, ended bool) {
	for i, b := range p {
		m.cost++
		switch {
		case m.escaped:
			m.escaped = false
		case m.inString:
			m.escaped = b == '\\'
			m.inString = b != '"'
		case b == '"':
			m.inString = true
		case b == ',':
			m.cost += valueCost
		case b == '{', b == '[':
			m.cost += valueCost
			m.depth++
		case b == '}', b == ']':
			m.depth--
			if m.depth <= 0 {
				m.depth = 0
				return i + 1, true
			}
		}
	}
	return len(p), false
}

// MeasureCost reads JSON and returns its cost, or false as soon as that exceeds limit.
func MeasureCost(from io.Reader, limit int64) (cost int64, within bool, err error) {
	var m meter
	for buffer := make([]byte, 32<<10); ; {
		n, err := from.Read(buffer)
		for part := buffer[:n]; len(part) > 0; {
			used, _ := m.add(part)
			part = part[used:]
		}
		switch {
		case m.cost > limit:
			return m.cost, false, nil
		case err == io.EOF:
			return m.cost, true, nil
		case err != nil:
			return m.cost, false, err
		}
	}
}
