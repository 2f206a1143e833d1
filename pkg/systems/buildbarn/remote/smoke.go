package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-dev/coracle/pkg/base/count"
)

// maxText bounds how much of an action's output is read, in bytes.
const maxText = 64 << 10

// Step is one step of a smoke test.
type Step struct {
	Name   string
	Took   time.Duration
	Detail string
	// Err is why the step failed and what to do next. A failed step is the last.
	Err error
}

// Smoke holds the options of a smoke test.
type Smoke struct {
	Platform map[string]string
	// Timeout bounds the action's waiting and running time.
	Timeout time.Duration
	// Progress, if not nil, is called with the stage of the action.
	Progress func(stage string)
}

// Run executes an action that reads an input and writes an output, and checks the output. Then it builds the action
// again like a client that first asks the action cache, and must hit it. report is called as each step ends. Run
// returns the error of the last step.
func (s Smoke) Run(ctx context.Context, c *Client, report func(Step)) error {
	t := trial{Smoke: s, client: c}
	for _, step := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{"capabilities", t.capabilities}, {"upload", t.upload}, {"execute", t.execute}, {"download", t.download},
		{"again", t.again},
	} {
		began := time.Now()
		detail, err := step.do(ctx)
		if err != nil {
			err = advised(err, s)
		}
		report(Step{Name: step.name, Took: time.Since(began), Detail: detail, Err: err})
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

type trial struct {
	Smoke
	client *Client
	caps   Capabilities
	action Digest
	blobs  []Blob
	text   []byte
	result *Result
}

func (t *trial) capabilities(ctx context.Context) (string, error) {
	caps, err := t.client.Capabilities(ctx)
	if err != nil {
		return "", err
	}
	if !caps.Execution {
		return "", errors.New("the frontend stores blobs, but executes nothing: its configuration names no scheduler " +
			"(schedulers)")
	}
	t.caps = caps
	t.client.Limit(caps)
	return fmt.Sprintf("version %s to %s of the API, SHA-256, batches of %d KiB", caps.Oldest, caps.Newest,
		caps.Batch>>10), nil
}

func (t *trial) upload(ctx context.Context) (string, error) {
	salt := make([]byte, 16)
	if _, err := rand.Read(salt); err != nil {
		return "", err
	}
	t.text = fmt.Appendf(nil, "a smoke test of %x\n", salt)
	var err error
	t.action, t.blobs, err = Action{
		Arguments:   []string{"/bin/sh", "-c", "mkdir -p out && cat in/text > out/text && cat in/text"},
		Environment: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
		Platform:    t.Platform, Inputs: map[string][]byte{"in/text": t.text}, Outputs: []string{"out/text"}, Salt: salt,
		Timeout: t.Timeout,
	}.Blobs()
	if err != nil {
		return "", err
	}
	missing, err := t.client.Upload(ctx, t.blobs)
	if err != nil {
		return "", err
	}
	var size int64
	for _, d := range missing {
		size += d.Size
	}
	return fmt.Sprintf("%d blobs, %d bytes", len(missing), size), nil
}

func (t *trial) execute(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	var err error
	if t.result, err = t.client.Execute(ctx, t.action, Execution{Progress: t.Progress}); err != nil {
		return "", err
	}
	detail := fmt.Sprintf("exit code %d by %s: queued %s, inputs %s, ran %s, outputs %s", t.result.ExitCode,
		printable(t.result.Worker), short(t.result.Queued), short(t.result.Inputs),
		short(t.result.Ran), short(t.result.Outputs))
	if t.result.Repeats > 0 {
		detail += "; retried " + count.Of(t.result.Repeats, "time")
	}
	switch {
	case t.result.ExitCode != 0:
		stderr, err := t.client.Text(ctx, t.result.Stderr, maxText)
		if err != nil {
			stderr = fmt.Appendf(nil, "(not read: %v)", err)
		}
		return detail, fmt.Errorf("the action ended with exit code %d: %s. It needs /bin/sh, mkdir and cat in the runner's "+
			"image", t.result.ExitCode, printable(string(stderr)))
	case t.result.Cached:
		return detail, errors.New("the result of an action that was never executed before came from the action cache, " +
			"which holds a wrong result")
	}
	return detail, nil
}

func (t *trial) download(ctx context.Context) (string, error) {
	d, ok := t.result.Files["out/text"]
	if !ok {
		return "", fmt.Errorf("the result has no file out/text: the worker kept %q", slices.Sorted(maps.Keys(t.result.Files)))
	}
	got, err := t.client.Download(ctx, d, maxText)
	if err != nil {
		return "", err
	}
	stdout, err := t.client.Text(ctx, t.result.Stdout, maxText)
	if err != nil {
		return "", err
	}
	if !bytes.Equal(got, t.text) || !bytes.Equal(stdout, t.text) {
		return "", fmt.Errorf("the output is %q and standard output %q; both should be %q", printable(string(got)),
			printable(string(stdout)), t.text)
	}
	return fmt.Sprintf("%d bytes, as expected", d.Size), nil
}

func (t *trial) again(ctx context.Context) (string, error) {
	got, err := t.client.Cached(ctx, t.action)
	if err != nil {
		return "", err
	}
	if got == nil || got.Files["out/text"] != t.result.Files["out/text"] {
		return "", errors.New("the action cache does not have the result: the worker's configuration must let it write to " +
			"the action cache that the frontend reads (blobstore.actionCache)")
	}
	missing, err := t.client.Missing(ctx, []Digest{got.Files["out/text"]})
	if err != nil {
		return "", err
	}
	if len(missing) > 0 {
		return "", errors.New("the action cache has the result, but the storage has lost its output: the action cache " +
			"needs completenessChecking")
	}
	return "cache hit", nil
}

func advised(err error, s Smoke) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return fmt.Errorf("%w. The farm did not answer in time: look for workers that are not ready, or allow more with "+
			"--timeout", err)
	}
	var next string
	switch code := status.Code(err); {
	// Buildbarn returns Unavailable, other services FailedPrecondition.
	case code == codes.FailedPrecondition, code == codes.Unavailable && strings.Contains(err.Error(), "No workers exist"):
		next = fmt.Sprintf("No worker serves this instance and platform %s: give a BuildbarnWorker's instance and platform "+
			"with --instance and --platform, and check that its pods are ready", shown(s.Platform))
	case code == codes.Unavailable:
		next = "A part of the farm cannot be reached: `coracle buildbarn status` shows which parts are not ready and why; " +
			"also check that the addresses in the configuration name its Services"
		switch text := err.Error(); {
		case strings.Contains(text, "tls:"):
			next = "The frontend does not use TLS as requested: leave out --tls, or give its authority with --ca"
		case strings.Contains(text, "server preface"):
			next = "The server does not speak plain gRPC: if it uses TLS, give its authority with --ca"
		}
	case code == codes.Unauthenticated, code == codes.PermissionDenied:
		next = "The farm refuses the credentials: use --cert and --key or --token-file, or change the authorizers in its " +
			"configuration"
	case code == codes.Unimplemented:
		next = "The server is not a frontend: give the address of bb_storage with schedulers, port 8980"
	case code == codes.InvalidArgument:
		next = "Choose an instance name that the farm serves with --instance"
	default:
		return err
	}
	return &adviceError{err, next}
}

// adviceError is a server's error with advice. Its text omits gRPC's description of its own retries.
type adviceError struct {
	err  error
	next string
}

var retried = regexp.MustCompile(`^max retries exhausted: failed after \d+ attempts: rpc error: code = \w+ desc = `)

func (e *adviceError) Error() string {
	text := retried.ReplaceAllString(status.Convert(e.err).Message(), "")
	return fmt.Sprintf("%s: %s. %s", status.Code(e.err), printable(text), e.next)
}

func (e *adviceError) Unwrap() error { return e.err }

func shown(platform map[string]string) string {
	if len(platform) == 0 {
		return "{}"
	}
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(platform)) {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s=%s", k, platform[k])
	}
	return "{" + b.String() + "}"
}

// printable makes a worker's or action's text safe for a terminal: one line without control characters, at most 300
// bytes.
func printable(text string) string {
	text = strings.TrimSpace(text[:min(len(text), 300)])
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xfffd {
			return ' '
		}
		return r
	}, text)
}

func short(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
