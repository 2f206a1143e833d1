package apiserver

// stackBytes is about the stack that upstream's validation, the deepest call of a write, needs.
const stackBytes = 12 << 10

// growStack grows the goroutine's stack in one step. Each HTTP/2 request has a new goroutine, whose stack of a few
// KiB would otherwise be doubled and copied repeatedly during a write.
//
//go:noinline
func growStack() {
	var room [stackBytes]byte
	touch(&room)
}

//go:noinline
func touch(room *[stackBytes]byte) { room[0] = 1 }
