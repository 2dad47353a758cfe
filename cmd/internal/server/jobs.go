package server

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/jobs"
	"github.com/weir-pg/weir/cmd/internal/push"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/store"
)

// jobConnections is how many connections requests to enqueue, look up and cancel jobs share. They are apart from the hub's, so that these
// requests, whatever their number, can't keep it from reading messages.
const jobConnections = 4

// jobEndpoints returns the endpoints of jobs, after it has checked that this server may serve them.
func (s *Server) jobEndpoints(ctx context.Context, metrics *prometheus.Registry) ([]web.Endpoints, error) {
	pool, err := s.jobPool(ctx, jobConnections, "weir hub jobs")
	if err != nil {
		return nil, fmt.Errorf("connect to the database for jobs: %w", err)
	}
	calls := store.New(pool, 0)
	_, err = calls.LookUpJSON(ctx, 0) // there is none, but only the roles that may work may ask
	switch {
	case store.IsDenied(err):
		return nil, fmt.Errorf("%w: to serve jobs, grant the role weir_work to this user as well, or do not serve them", err)
	case err != nil && !store.IsMoved(err):
		return nil, fmt.Errorf("read jobs from the database: %w", err)
	}
	if s.work, err = s.dispatcher(ctx, calls); err != nil {
		return nil, fmt.Errorf("connect to the database to work jobs: %w", err)
	}
	endpoints := []web.Endpoints{jobs.New(calls), s.work}
	if s.config.PushFile != "" {
		s.push, err = push.New(push.Config{File: s.config.PushFile, Dispatcher: s.work, Lease: s.work.Lease, Secret: s.secret, Metrics: metrics, Log: s.log})
		if err != nil {
			return nil, fmt.Errorf("read the endpoints to push jobs to: %w", err)
		}
		endpoints = append(endpoints, s.push)
	}
	return endpoints, nil
}

// jobPool returns a pool for calls of HTTP clients, which write times in UTC.
func (s *Server) jobPool(ctx context.Context, connections int, name string) (*pgxpool.Pool, error) {
	return s.poolWith(ctx, s.config.Database, connections, name, map[string]string{"timezone": "UTC"})
}
