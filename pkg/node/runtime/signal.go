package runtime

import (
	"strconv"
	"strings"
	"syscall"
)

var signals = map[string]syscall.Signal{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
	"SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19,
	"TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28,
	"IO": 29, "POLL": 29, "PWR": 30, "SYS": 31,
}

// ParseSignal parses a stop signal: "SIGQUIT", "QUIT", "3", "RTMIN+1" or "RTMAX-1". It returns false for other text.
func ParseSignal(s string) (syscall.Signal, bool) {
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig, ok := signals[name]; ok {
		return sig, true
	}
	const rtmin, rtmax = 34, 64
	number, base := name, 0
	if rest, ok := strings.CutPrefix(name, "RTMIN"); ok {
		number, base = rest, rtmin
	} else if rest, ok := strings.CutPrefix(name, "RTMAX"); ok {
		number, base = rest, rtmax
	}
	n := 0
	if base == 0 || number != "" {
		var err error
		if n, err = strconv.Atoi(number); err != nil {
			return 0, false
		}
	}
	if n += base; n < 1 || n > rtmax {
		return 0, false
	}
	return syscall.Signal(n), true
}
