// Package execute reads what exists of a member on both sides, and does the steps that package
// join has planned.
package execute
