// Package prune decides what the screens of kubectl ot prune say: what a report found, what
// an approval would delete, and how far a prune is.
package prune
