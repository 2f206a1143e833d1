package apiserver

// stackBytes is about what the deepest call of a write needs, which is upstream's validation.
const stackBytes = 12 << 10

// growStack gives the goroutine a stack for a write at once. Every HTTP/2 request has a goroutine of its own, whose
// stack begins with a few KiB and would be doubled, and copied, on the way down again and again.
//
//go:noinline
func growStack() {
	var room [stackBytes]byte
	touch(&room)
}

//go:noinline
func touch(room *[stackBytes]byte) { room[0] = 1 }
