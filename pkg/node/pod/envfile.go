package pod

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// maxEnvFile is how much of a file with environment variables is read, in bytes, because containers write it.
const maxEnvFile = 1 << 20

// fromFile reads a variable from a file in an emptyDir volume (KEP-3721). As in the kubelet, an empty value counts as
// missing. skip means that the variable is missing and optional.
func fromFile(p *corev1.Pod, volumes map[string]volume.Mounted,
	r *corev1.FileKeySelector) (value string, skip bool, err error) {
	at := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == r.VolumeName && v.EmptyDir != nil
	})
	mounted, ok := volumes[r.VolumeName]
	if at < 0 || !ok {
		return "", false, fmt.Errorf("cannot find the emptyDir volume %q referenced by fileKeyRef", r.VolumeName)
	}
	optional := r.Optional != nil && *r.Optional
	f, err := volume.OpenInside(mounted.Path, r.Path)
	if optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)) {
		return "", true, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("couldn't read env file of volume %q: %w", r.VolumeName, err)
	}
	defer f.Close()
	value, err = envFileValue(bounded.Reader(f, maxEnvFile), r.Key)
	if err != nil {
		return "", false, fmt.Errorf("couldn't parse env file %q of volume %q: %w", r.Path, r.VolumeName, err)
	}
	if value == "" && !optional {
		return "", false, fmt.Errorf("environment variable key %q not found in file %q of volume %q", r.Key, r.Path,
			r.VolumeName)
	}
	return value, value == "", nil
}

// envFileValue returns a variable's value in a file of assignments, or "". It accepts what upstream's parser does of
// POSIX shell syntax: NAME='value' without space around =; values are literal and may span lines; there may be empty
// lines and comments. NAME= and a space is an empty value. Parsing stops at the variable. A line has at most 64 KiB.
func envFileValue(r io.Reader, key string) (string, error) {
	lines := &envLines{Scanner: bufio.NewScanner(r)}
	for lines.next() {
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, assigns := strings.Cut(line, "=")
		switch {
		case !assigns:
			return "", lines.invalid("missing '='")
		case strings.Trim(name, " \t") == "":
			return "", lines.invalid("empty variable name")
		case strings.TrimRight(name, " \t") != name:
			return "", lines.invalid("whitespace before '=' is not allowed")
		}
		value := ""
		if rest == "" || rest[0] != ' ' && rest[0] != '\t' {
			var err error
			if value, err = lines.quoted(rest); err != nil {
				return "", err
			}
		}
		if name == key {
			return value, nil
		}
	}
	return "", lines.err()
}

type envLines struct {
	*bufio.Scanner
	number int
}

func (l *envLines) next() bool {
	l.number++
	return l.Scan()
}

// err returns the read error, or nil at the end of the file.
func (l *envLines) err() error {
	if err := l.Err(); !errors.Is(err, bufio.ErrTooLong) {
		return err
	}
	return fmt.Errorf("line %d is longer than %d bytes", l.number, bufio.MaxScanTokenSize-1)
}

func (l *envLines) invalid(why string) error { // omits the content, which may be secret
	return fmt.Errorf("invalid environment variable format at line %d: %s", l.number, why)
}

// quoted returns the quoted value that begins with text and may end in a later line.
func (l *envLines) quoted(text string) (string, error) {
	text, begins := strings.CutPrefix(text, "'")
	if !begins {
		return "", l.invalid("value must be enclosed in single quotes")
	}
	first := l.number
	var value strings.Builder
	for {
		part, after, ends := strings.Cut(text, "'")
		value.WriteString(part)
		if ends {
			if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
				return "", l.invalid("unexpected content after closing quote")
			}
			return value.String(), nil
		}
		value.WriteByte('\n')
		if !l.next() {
			if err := l.err(); err != nil {
				return "", err
			}
			return "", fmt.Errorf("invalid environment variable format starting at line %d: unclosed single quote", first)
		}
		text = l.Text()
	}
}
