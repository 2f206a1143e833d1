package rest

import (
	"crypto/rand"
	"strings"

	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
)

// suffixLength is the length of the random end of an object's name: 40 bits.
const suffixLength = 8

// newName returns a unique object name for a name that a client gave: Podling's names are not unique and may be any
// text, and an ID is never used again.
func newName(given string) string {
	return view.Stem(given) + "-" + strings.ToLower(rand.Text()[:suffixLength])
}
