package store

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// notHere lists flags of upstream's etcd that its library does not implement.
const notHere = "cors host-whitelist cipher-suites max-concurrent-streams discovery-endpoints " +
	"client-cert-allowed-hostname peer-cert-allowed-cn peer-cert-allowed-hostname"

// RunProgram runs etcd with upstream's flags and environment variables until ctx is done. A new member without others
// becomes leader at once.
func RunProgram(ctx context.Context, args []string, out io.Writer) error {
	c := embed.NewConfig()
	f := flag.NewFlagSet("etcd", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	c.AddFlags(f)
	state := flags.NewSelectiveStringValue(embed.ClusterStateFlagNew, embed.ClusterStateFlagExisting)
	f.Var(state, "initial-cluster-state",
		"Initial cluster state ('new' when bootstrapping a new cluster or 'existing' when adding new members to an "+
			"existing cluster).")
	shown := f.Bool("version", false, "Print the version and exit.")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return help(f, out)
	case err != nil:
		return err
	case f.NArg() > 0:
		return fmt.Errorf("%q is not a valid flag", f.Arg(0))
	case *shown:
		_, err := fmt.Fprintf(out, "etcd Version: %s\n", version.Version)
		return err
	}
	if err := flags.SetFlagsFromEnv(zap.NewNop(), "ETCD", f); err != nil {
		return err
	}
	if err := takeURLs(c, f); err != nil {
		return err
	}
	c.ClusterState = state.String()
	if err := c.Validate(); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(c.Dir, "member"))
	return serveProgram(ctx, c, errors.Is(err, fs.ErrNotExist))
}

func help(f *flag.FlagSet, out io.Writer) (err error) {
	_, err = fmt.Fprintln(out, "Usage:\n\n  etcd [flags]\n    Start an etcd server.\n\nFlags:")
	f.VisitAll(func(o *flag.Flag) {
		if !strings.Contains(" "+notHere+" ", " "+o.Name+" ") {
			_, e := fmt.Fprintf(out, "  --%s '%s'\n    %s\n", o.Name, o.DefValue, strings.ReplaceAll(o.Usage, "\n", "\n    "))
			err = errors.Join(err, e)
		}
	})
	return err
}

// takeURLs copies the flags that etcd's library parses but does not copy into its configuration.
func takeURLs(c *embed.Config, f *flag.FlagSet) error {
	var refused error
	f.Visit(func(o *flag.Flag) {
		c.FlagsExplicitlySet[o.Name] = true
		if strings.Contains(" "+notHere+" ", " "+o.Name+" ") {
			refused = errors.Join(refused, fmt.Errorf("--%s is not supported: use upstream's etcd", o.Name))
		}
	})
	c.ListenPeerUrls = flags.UniqueURLsFromFlag(f, "listen-peer-urls")
	c.AdvertisePeerUrls = flags.UniqueURLsFromFlag(f, "initial-advertise-peer-urls")
	c.ListenClientUrls = flags.UniqueURLsFromFlag(f, "listen-client-urls")
	c.ListenClientHttpUrls = flags.UniqueURLsFromFlag(f, "listen-client-http-urls")
	c.AdvertiseClientUrls = flags.UniqueURLsFromFlag(f, "advertise-client-urls")
	c.ListenMetricsUrls = flags.UniqueURLsFromFlag(f, "listen-metrics-urls")
	c.LogOutputs = flags.UniqueStringsFromFlag(f, "log-outputs")
	if flags.IsSet(f, "listen-client-urls") && !flags.IsSet(f, "advertise-client-urls") {
		c.AdvertiseClientUrls = nil
	}
	return refused
}

func serveProgram(ctx context.Context, c *embed.Config, fresh bool) error {
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	if fresh {
		s := &Store{cfg: Config{Logger: slog.New(slog.DiscardHandler)}, failed: make(chan struct{}), replayed: replayed}
		s.lead(ctx, e.Server, fresh)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-e.Server.StopNotify():
		return errors.New("etcd stopped")
	case err := <-e.Err():
		return err
	}
}
