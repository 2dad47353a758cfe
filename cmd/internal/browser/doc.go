// Package browser tests examples/browser in a real browser, and its client in Node.
package browser
