package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

func TestClockThatWasSet(t *testing.T) {
	for by, again := range map[time.Duration]bool{
		-20 * time.Minute:         true,
		time.Minute:               false,
		56 * 365 * 24 * time.Hour: true,
	} {
		var log bytes.Buffer
		c := newClock(slog.New(slog.NewTextHandler(&log, nil)))
		c.began -= by // as if it had been set since
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		<-c.Ready()
		if again {
			require.ErrorIs(t, <-ended, errClockSet)
			require.Contains(t, log.String(), "clock was set")
		}
		cancel()
		if !again {
			require.NoError(t, <-ended)
		}
	}
}

func TestServesAgain(t *testing.T) {
	refused, hung := errors.New("refused"), &run.HungError{Names: []string{"store"}}
	for _, last := range []error{nil, refused, errors.Join(errClockSet, hung)} {
		errs := []error{errClockSet, errAddressLost, last}
		require.Equal(t, last, serveAgain(func() error {
			err := errs[0]
			errs = errs[1:]
			return err
		}))
		require.Empty(t, errs)
	}
}
